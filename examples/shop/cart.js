// The cart: how many of each product.

import { PRODUCTS, dataOf, rounded } from '/products.js'
import { storage } from '/storage.js'

const FREE_FROM = 50
const SHIPPING = 4.9
export const MOST = 99 // of one product

function quantities() {
  return JSON.parse(storage.getItem('shop.cart') ?? '{}')
}

/** The products in the cart, each with its quantity. */
export function lines() {
  const inCart = quantities()
  return PRODUCTS.map((product) => ({ ...dataOf(product), quantity: inCart[product.product_id] ?? 0 })).filter(({ quantity }) => quantity > 0)
}

export function setQuantity(product_id, quantity) {
  storage.setItem('shop.cart', JSON.stringify({ ...quantities(), [product_id]: Math.min(quantity, MOST) }))
}

export const quantityOf = (product_id) => quantities()[product_id] ?? 0
export const pieces = () => lines().reduce((sum, { quantity }) => sum + quantity, 0)
export const empty = () => storage.removeItem('shop.cart')

/** The sums as an order has them: what the products cost, what brings them, and both. */
export function sums() {
  const revenue = rounded(lines().reduce((sum, { price, quantity }) => sum + price * quantity, 0))
  const shipping = revenue === 0 || revenue >= FREE_FROM ? 0 : SHIPPING
  return { revenue, shipping, total: rounded(revenue + shipping) }
}
