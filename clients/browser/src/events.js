// Makes an event of a call: what the page knows, in the form that the daemon takes.

import { withoutSecrets } from './addresses.js'
import { campaign, navigation } from './campaign.js'
import { count, recall, remember } from './device.js'
import { copy } from './json.js'
import { keyOf, plain } from './names.js'
import { add, isKey } from './queue.js'
import { later } from './sender.js'
import { isPlain, random, state, warn } from './state.js'

/** An id of this client, or a like one that the shop has set: no word such as `undefined`, and not all zeros. */
export const ID = /^(?![0-]+$)[\w-]{16,128}$/

let wait = 0 // of the next event, in milliseconds
let known // the id that this page has kept
let shown // the address of the last event
let before // the one before it

/** Where and when something happens. */
export const note = () => ({ at: Date.now(), url: location.href, title: `${document.title}` })

/** The visitor's id. */
export function visitor() {
  const id = recall('ingestd.id', ID) ?? random()
  if (id !== known) remember('ingestd.id', (known = id))
  return id
}

function context(url, title) {
  const { secrets } = state.options
  const page = withoutSecrets(url, secrets)
  if (page !== shown) [before, shown] = [shown, page]
  return {
    page: { url: page, referrer: before ?? withoutSecrets(document.referrer, secrets), title: title.slice(0, 1000) },
    campaign: campaign(url),
    locale: navigator.language,
    // Some systems have a locale that throws here.
    get timezone() {
      return Intl.DateTimeFormat().resolvedOptions().timeZone
    },
    userAgent: navigator.userAgent,
    viewport: { width: innerWidth, height: innerHeight },
  }
}

/** The time of a call. A page that the browser had prepared was opened only by its activation. */
function time(at) {
  const shownSince = Date.now() - performance.now() + (navigation().activationStart ?? 0)
  return new Date(Math.max(at, shownSince)).toISOString()
}

/** The event after `before_send`; undefined if the shop has dropped it, or its function fails. */
function changed(event) {
  try {
    const made = state.options.before_send?.(event)
    if (made === undefined) return event
    if (made !== null && !made.messageId) throw TypeError() // such as a promise
    return made
  } catch (error) {
    count('before_send')
    warn(error)
  }
}

/**
 * Adds an event or identify request. `at`, `url` and `title` are those of the call, `fields` further members. `base` has
 * members of the data that those of the event replace.
 */
export function send(event, { at, url, title }, fields, base) {
  const { options, refused } = state
  if (refused) return
  if (!isKey(options.key) || !isKey(options.host)) return count('options')
  const given = copy({ ...fields, ...event })
  if (event.key) {
    given.key = keyOf(given.key)
    const data = given.data ?? {}
    given.data = plain(given.key, isPlain(data) ? { ...base, ...data } : data)
  }
  const made = changed({
    ...given,
    anonymousId: event.anonymousId ?? visitor(),
    messageId: random(),
    timestamp: time(at),
    context: { ...copy(context(url, title)), ...given.context },
  })
  if (!made) return
  add(options.key, made)
  later(wait)
  wait = options.interval
}
