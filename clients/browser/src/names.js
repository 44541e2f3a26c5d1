// The names of events and the numbers in their data, as people write them.

import { isPlain } from './state.js'

/** In an order that compresses well. */
const KEYS = (
  'Coupon Removed,Coupon Applied,Products Searched,Coupon Denied,Product Removed,Order Refunded,Order Updated,' +
  'Promotion Clicked,Product Reviewed,Product Viewed,Product List Viewed,Product List Filtered,Checkout Started,' +
  'Coupon Entered,Checkout Step Viewed,Product Clicked,Account Created,Promotion Viewed,Product Added,' +
  'Order Cancelled,Account Deleted,Product Shared,Cart Shared,Cart Viewed,Product Added to Wishlist,Signed Out,' +
  'Signed In,Product Removed from Wishlist,Wishlist Product Added to Cart,Order Completed,Payment Info Entered,' +
  'Checkout Step Completed,Page View'
).split(',')
/** The start of those whose data has the numbers. The position of a promotion is a text. */
const WITH_NUMBERS = /^([COW]|Prod)/
const NUMBERS = /^(position|discount|quantity|value|rating|shipping|step|total|price|revenue|tax)$/

/** @type {Map<string, string>} */
let keys

/** Segment's old names have the words of the new ones in another order: `Completed Order`, `completed_order`. */
const letters = (name) => [...name.toLowerCase().replace(/[\s_-]/g, '')].sort().join()

/** The key that a name means. A name that means none may be a key of the shop's own schemas. */
export function keyOf(name) {
  keys ??= new Map(KEYS.map((key) => [letters(key), key]))
  return keys.get(letters(name)) ?? name
}

/** The data of an event: text that is a plain number becomes the number, and null is as if it were missing. */
export function plain(key, data) {
  if (!WITH_NUMBERS.test(key) || !KEYS.includes(key) || !isPlain(data)) return data
  const made = tidy(data)
  if (Array.isArray(made.products)) made.products = made.products.map((each) => (isPlain(each) ? tidy(each) : each))
  return made
}

function tidy(members) {
  const made = { ...members }
  for (const [name, value] of Object.entries(members)) {
    if (value === null) delete made[name]
    else if (NUMBERS.test(name) && /^-?\d{1,99}(\.\d+)?$/.test(`${value}`.trim())) made[name] = +value
  }
  return made
}
