// The events that wait. The names of their entries sort by time.

import { count, dropped, entry, isEvent, names, read, remove, write } from './device.js'
import { json } from './json.js'
import { isPlain, random } from './state.js'

const KNOWN = 82800e3 // the daemon knows a messageId for an hour more
const MOST = 500
const LARGEST = 1e6 // characters of all
const FAR = 1200e3 // a time that is further ahead is a wrong clock's
/** Characters of a request. An ending page may send 64 KiB, and a character may have three bytes. */
export const ROOM = 20e3

/** The events that are on their way, by name. @type {Map<string, object>} */
export const sent = new Map()
const tab = random()
let stamp = 0
let added = 0

/** A key stands in a header. */
export const isKey = (key) => /^[!-~]+$/.test(key ?? '')

const isWaiting = ({ key, event }) => isKey(key) && isPlain(event)

/** Whether a time that the device has kept is still to come. */
export const isAhead = (time, now) => time > now && time - now < FAR

/** Keeps an event. `tried` is when it was first sent. No page sends it before `after`. */
export function put({ name, key, event, tried, after }) {
  write(name, json({ key, event, tried, after }))
}

export function drop(name, reason) {
  remove(name)
  count(reason)
}

export function add(key, event) {
  stamp = Math.max(stamp + 1, Date.now() * 1000)
  put({ name: `ingestd.q${stamp}${tab}`, key, event })
  if (++added % 50 === 0) trim()
}

/** Drops the oldest events that are too many or too large. */
export function trim() {
  let size = 0
  names()
    .filter(isEvent)
    .reverse()
    .forEach((name, index) => {
      const length = read(name)?.length ?? 0
      if (sent.has(name) || (index < MOST && size + length <= LARGEST)) size += length
      else drop(name, 'room')
    })
}

/** The oldest events of one key for a request, at most so many; and when there will be others. */
export function oldest(most) {
  const now = Date.now()
  const batch = []
  let size = 0
  let next = Infinity
  for (const name of names().filter(isEvent)) {
    const value = entry(name, isWaiting)
    if (!value) continue // another page has sent it
    const { key, event, tried, after } = value
    const library = { name: 'ingestd.js', version: '0.2.0', dropped: dropped() }
    const text = json({ ...event, context: { ...event.context, library } })
    // The daemon may have stored it, and forgotten its messageId.
    if (now - tried > KNOWN) drop(name, 'expired')
    else if (isAhead(after, now)) next = Math.min(next, after)
    else {
      size += text.length
      if (batch.length && (batch.length >= most || key !== batch[0].key || size > ROOM)) break
      batch.push({ ...value, name, text })
    }
  }
  return { batch, next }
}
