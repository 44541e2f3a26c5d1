// The names of events and the numbers in their data, as people write them.

import { isPlain } from './state.js'

const KEYS =
  `Products Searched,Product List Viewed,Product List Filtered,Promotion Viewed,Promotion Clicked,Product Clicked,
Product Viewed,Product Added,Product Removed,Cart Viewed,Checkout Started,Checkout Step Viewed,Checkout Step Completed,
Payment Info Entered,Order Updated,Order Completed,Order Refunded,Order Cancelled,Coupon Entered,Coupon Applied,
Coupon Removed,Coupon Denied,Product Added to Wishlist,Product Removed from Wishlist,Wishlist Product Added to Cart,
Product Shared,Cart Shared,Product Reviewed,Page View,Signed In,Signed Out,Account Created,Account Deleted`.split(/,\n?/)
/** Those of them whose data has the numbers. The position of a promotion is a text. */
const WITH_NUMBERS = KEYS.filter((key) => /^([COW]|Prod)/.test(key))
const NUMBERS = /^(price|quantity|position|total|revenue|shipping|tax|discount|value|step|rating)$/

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
  if (!WITH_NUMBERS.includes(key) || !isPlain(data)) return data
  const made = tidy(data)
  if (Array.isArray(made.products)) made.products = made.products.map((each) => (isPlain(each) ? tidy(each) : each))
  return made
}

function tidy(members) {
  const made = { ...members }
  for (const [name, value] of Object.entries(members)) {
    if (value === null) delete made[name]
    else if (NUMBERS.test(name) && /^-?\d+(\.\d+)?$/.test(`${value}`.trim())) made[name] = +value
  }
  return made
}
