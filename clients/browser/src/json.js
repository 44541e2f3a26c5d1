// Writes JSON that the daemon takes, of any value. `JSON.stringify` throws for some, and old libraries change it.

import { count } from './device.js'
import { warn } from './state.js'

let left = 0
let deepest

/** Half of a surrogate pair becomes U+FFFD. */
const quote = (text) => JSON.stringify(`${text}`.replace(/\p{Surrogate}/gu, '\ufffd'))

/** What cannot be written, is too deep or too much, is left out and counted. Undefined if that is all of it. */
export function json(value, depth, most = Infinity) {
  deepest = depth
  left = most
  return part(() => value, [])
}

/** The value as JSON has it, with room for more objects around it. */
export const copy = (value) => JSON.parse(json(value, 100, 10e3))

function part(take, above) {
  try {
    return written(take(), above)
  } catch (error) {
    count('unserializable')
    warn('lost:', error)
  }
}

function written(value, above) {
  if (left-- < 0) throw TypeError()
  switch (typeof value) {
    case 'string':
    case 'bigint':
      return quote(value)
    case 'boolean':
    case 'number':
      if (!isFinite(value)) throw TypeError()
      return `${value}`
    case 'object':
      return value === null ? 'null' : object(value, above)
  }
}

function object(value, above) {
  // A very deep object, a cyclic one, an element of the page or its window.
  if (above[deepest] || above.includes(value) || value.nodeType > 0 || value.window === value) throw TypeError()
  const inside = [...above, value]
  if (value instanceof Map) value = Object.fromEntries(value)
  // Not one that a library gave to all objects or lists.
  const own = value.toJSON && !Array.isArray(value) && value.toJSON !== {}.toJSON
  // `valueOf` is for a `String`. A time of `Temporal` throws there.
  const bare = value.toISOString?.() ?? (own ? value.toJSON() : (value.valueOf?.() ?? value))
  if (bare !== value) return written(bare, inside)
  if (value[Symbol.iterator]) {
    let parts = ''
    for (const each of value) {
      const text = part(() => each, inside)
      if (text) parts += `,${text}`
      if (left < -1) break // which has been counted
    }
    return `[${parts.slice(1)}]`
  }
  let members = ''
  for (const name of Object.keys(value)) {
    const text = part(() => value[name], inside)
    if (text) members += `,${quote(name)}:${text}`
    if (left < -1) break
  }
  return `{${members.slice(1)}}`
}
