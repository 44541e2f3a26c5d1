// Sends the events that wait, a batch at a time, until the daemon itself has taken or refused each.

import { read, remove, write } from './device.js'
import { drop, isAhead, oldest, put, ROOM, sent, trim } from './queue.js'
import { state, warn } from './state.js'

const LONGEST = 600e3 // pause

/** @type {Set<AbortController>} */
const requests = new Set()
let most = 100 // events of a request, which has room for fewer
let attempts = 0
let timer
let due

export function later(wait) {
  const at = Date.now() + wait
  if (timer && due <= at) return
  clearTimeout(timer)
  due = at
  timer = setTimeout(send, wait)
}

/** Sends one request at a time. A page that ends sends at once what is not yet on its way. */
export function send(ends) {
  clearTimeout(timer)
  timer = 0
  const { options, granted, refused } = state
  if (refused || !(granted || options.beforeConsent === 'anonymous') || (requests.size && ends !== true)) return
  trim()
  const now = Date.now()
  const pause = read('ingestd.pause')
  if (isAhead(pause, now)) return later(pause - now)
  const { batch, next } = oldest(most)
  if (batch.length) request(batch)
  else if (next < Infinity) later(next - now)
}

async function request(batch) {
  const abort = new AbortController()
  setTimeout(() => abort.abort(), 30e3) // without effect on a request that has ended
  requests.add(abort)
  for (const each of batch) {
    sent.set(each.name, each)
    each.tried ??= Date.now()
  }
  holdBack(35e3)
  let answer
  let told
  try {
    answer = await post(batch, abort.signal)
    told = await answer.json() // no JSON if somebody else has answered
  } catch (error) {
    warn(error)
  }
  requests.delete(abort)
  // Without those that were removed because the visitor has refused.
  const left = batch.filter(({ name }) => sent.delete(name))
  if (left.length) later(settle(batch, left, answer, told))
}

async function post(batch, signal) {
  const events = batch.map(({ text }) => text).join()
  const init = {
    __proto__: null,
    method: 'POST',
    headers: { authorization: `Bearer ${batch[0].key}`, 'content-type': 'application/json' },
    body: `{"sentAt":"${new Date().toISOString()}","events":[${events}]}`,
    credentials: 'omit',
    keepalive: events.length <= ROOM,
    signal,
  }
  const url = `${state.options.host}`.replace(/\/*$/, '/api/v1/analytics/batch')
  try {
    return await fetch(url, init)
  } catch (error) {
    if (!init.keepalive) throw error
    // Requests that may outlive the page share 64 KiB, and others may have taken them.
    init.keepalive = false
    return fetch(url, init)
  }
}

const isBad = (status) => /^4(?!08|29)/.test(status)

/** Does with each event what was said of it. Returns when to send the next, in milliseconds. */
function settle(batch, left, answer, told) {
  const status = answer?.status
  // Anybody on the way may answer 403 or 404. These problems are the daemon's, but perhaps of the key or the origin.
  const own = /^urn:ingestd:/.test(told?.type)
  const isOfEvents = !own || status === 400 || status === 413
  // A firewall's page may come with 200.
  const isDoubtful = isBad(status) || (status === 200 && !told?.results)
  const next = isDoubtful ? 1000 : 0
  // To find the event at fault. A firewall's answer without CORS is none.
  if (isDoubtful || !answer) most = batch.length / 2
  if (isDoubtful && batch[1] && isOfEvents) {
    for (const each of left) put({ ...each, after: 0 })
    return next
  }
  let pauses = false
  for (const each of left) {
    const result = own ? told : told?.results?.[batch.indexOf(each)]
    if (result?.status === 200) {
      remove(each.name)
      continue
    }
    warn(each.event.key, JSON.stringify(result))
    const age = Date.now() - each.tried
    const after = Date.now() + Math.min(120e3, Math.max(2000, age))
    if (isBad(result?.status) && isOfEvents) drop(each.name, 'refused')
    else if (isDoubtful || (result?.status === 500 && !own)) {
      // Perhaps only this event is at fault, so the others go on.
      put({ ...each, after })
    } else {
      pauses = true
      const isFault = most < 1 && age > 60e3 // it was alone, and had no answer
      put({ ...each, after: isFault && after, tried: result ? undefined : each.tried }) // the daemon has not stored it
    }
  }
  if (!pauses) {
    attempts = 0
    most *= 2
    remove('ingestd.pause')
    return next
  }
  const asked = 1000 * answer?.headers?.get('retry-after')
  const wait = (asked > 0 ? Math.min(LONGEST, asked) : Math.min(60e3, 1000 * 2 ** attempts++)) * (1 + Math.random() / 2)
  write('ingestd.pause', `${Date.now() + wait}`)
  return wait
}

/** Other pages leave the events alone that are on their way. */
function holdBack(milliseconds) {
  sent.forEach((each) => put({ ...each, after: Date.now() + milliseconds }))
}

/** Gives up all requests. */
export function stop() {
  sent.clear()
  requests.forEach((abort) => abort.abort())
}

/** The page is hidden or ends. Requests that may outlive it have room for three times a batch. */
export function leave({ type }) {
  send(true)
  send(true)
  send(true)
  // Nobody hears the answers, so the next page need not wait for long.
  if (type === 'pagehide') holdBack(5000)
}

export function online() {
  remove('ingestd.pause')
  send()
}
