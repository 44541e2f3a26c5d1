// What the client keeps: in the memory of the page, and on the device as far as it may and can.

import { isPlain, state } from './state.js'

/**
 * All that this page has kept: a shop may clear the storage, or the browser has none. Null is an entry that the storage
 * does not let go. @type {Map<string, string | null>}
 */
export const memory = new Map()

/** Undefined if storage is forbidden, broken or full. It may always have the visitor's decision. */
function device(name, work) {
  try {
    if (state.granted || name === 'ingestd.consent') return work()
  } catch {}
}

export const load = (name) => device(name, () => localStorage.getItem(name))

export const isEvent = (name) => name.startsWith('ingestd.q')

export function read(name) {
  return memory.has(name) ? memory.get(name) : load(name)
}

export function write(name, value) {
  memory.set(name, value)
  device(name, () => localStorage.setItem(name, value))
}

export function remove(name) {
  memory.delete(name)
  device(name, () => localStorage.removeItem(name))
  if (load(name) != null) memory.set(name, null)
}

export function names() {
  const all = new Set([...(device('', () => Object.keys(localStorage)) ?? []), ...memory.keys()])
  return [...all].filter((name) => name.startsWith('ingestd.') && memory.get(name) !== null).sort()
}

/** The value of an entry; undefined if there is none. One that this client has not made is removed and counted. */
export function entry(name, fits) {
  const text = read(name)
  if (text == null) return
  try {
    const value = JSON.parse(text)
    if (fits(value)) return value
  } catch {}
  remove(name)
  count(name === 'ingestd.campaign' ? 'campaign' : 'storage')
}

const areCounts = (value) => isPlain(value) && Object.values(value).every(Number.isInteger)

/** How many things this device has lost, by reason; undefined if none. */
export function dropped() {
  return entry('ingestd.dropped', areCounts)
}

export function count(reason) {
  const all = dropped() ?? dropped() ?? {} // an unreadable count makes a new one
  all[reason] = (all[reason] ?? 0) + 1
  // By hand, since libraries change what `JSON.stringify` makes of an object.
  write('ingestd.dropped', `{${Object.entries(all).map(([each, number]) => `"${each}":${number}`)}}`)
}

const ofDomain = (start) => (state.options.domain ? start + state.options.domain : '')

/** With a domain the cookie has another name, since a cookie of the host alone would hide it. */
const cookie = (name) => `${name}${ofDomain('.')}=`

function bake(name, value) {
  const rest = `path=/; samesite=lax; max-age=${value ? 31536000 : 0}${ofDomain('; domain=')}`
  device(name, () => (document.cookie = `${cookie(name)}${value}; ${rest}`))
}

/**
 * An entry that is also a cookie. The cookie goes first: another tab or subdomain may have just set it. If no value has
 * the form, they are removed and counted.
 */
export function recall(name, form) {
  const start = cookie(name)
  const valueOf = (each) => (each.startsWith(start) ? each.slice(start.length) : undefined)
  const found = [...(device(name, () => document.cookie.split('; ').map(valueOf)) ?? []), read(name)]
  const right = found.find((each) => form.test(each)) // nor have `undefined` and `null` the form
  if (right || !found.some((each) => each != null)) return right
  remember(name)
  count(name.slice(8))
}

/** Keeps a value, or removes the entry without one. The cookie comes first, since the storage tells other tabs. */
export function remember(name, value) {
  bake(name, value)
  value ? write(name, value) : remove(name)
}

/** Forgets all but the decision, which other pages find at any moment. */
export function forget() {
  state.granted = true
  remember('ingestd.id')
  names().forEach((name) => name === 'ingestd.consent' || remove(name))
  state.granted = false
}
