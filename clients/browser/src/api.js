// The functions of the client: docs/browser-client.md. ingestd.d.ts has their types.

import { SECRETS } from './addresses.js'
import { campaign, endCampaign } from './campaign.js'
import { count, forget, isEvent, load, memory, recall, remember, write } from './device.js'
import { ID, note, send, visitor } from './events.js'
import { copy } from './json.js'
import { later, leave, online, stop } from './sender.js'
import { isPlain, random, state, warn } from './state.js'

const DECISION = /^(yes|no)$/

/** Calls before init. @type {(() => void)[]} */
const early = []
let begun = false
let replayed // the note of a call that the first script has kept
let user // the last one of identify or alias
let registered = {}

const isBlocked = () => state.options.gpc && navigator.globalPrivacyControl
const stores = () => state.options.beforeConsent === 'store'

function begin(given) {
  if (begun) return
  begun = true
  // Nobody has seen a page that the browser has only prepared.
  if (document.prerendering) document.addEventListener('prerenderingchange', () => guarded(start)(given))
  else start(given)
}

function start(given) {
  const options = { __proto__: null, ...given }
  state.options = options
  options.beforeConsent ??= 'store'
  options.interval ??= 1000
  options.secrets = `${options.secrets ?? SECRETS}`.toLowerCase().match(/\p{L}+/gu) ?? []
  const decision = decided()
  state.granted = decision === 'yes'
  state.refused = isBlocked() || decision === 'no'
  if (isBlocked()) {
    remember('ingestd.consent')
    forget()
  }
  listen()
  campaign()
  early.forEach((call) => call())
  campaign(location.href)
  later(options.interval) // for events of earlier pages
}

/** The visitor's decision: yes, no, or blank. */
const decided = () => recall('ingestd.consent', DECISION) ?? (stores() ? 'yes' : '')

function listen() {
  const { restored, singlePage } = state.options
  addEventListener('online', online)
  addEventListener('visibilitychange', (event) => document.hidden && leave(event))
  addEventListener('pagehide', leave)
  addEventListener('pageshow', ({ persisted }) => {
    if (!persisted) return
    // Another page may have replaced what the device keeps, or removed the decision.
    for (const name of memory.keys()) {
      if (name === 'ingestd.consent' || (!isEvent(name) && load(name))) memory.delete(name)
    }
    decide(decided() === 'yes')
    later(0)
    if (restored) page()
  })
  addEventListener('storage', ({ key }) => {
    memory.delete(key) // null: somebody has cleared all, and the page keeps its own
    // The storage counts: what is told may be older than a decision in this tab, and browsers tell their processes of
    // the cookie later. Without a decision, `store` goes on as before.
    if (key === 'ingestd.consent' && (load(key) || !stores())) decide(load(key) === 'yes')
  })
  if (singlePage) watchHistory()
}

/** Path and query, to be compared. Some shops have the path behind `#/` or `#!/`; without one it ends in `null`. */
const place = () => [location.pathname + /^#!?\/[^?]*/.exec(location.hash), location.search]

/** A change of the path is a view, and so is one of the query unless it replaces the address. */
function watchHistory() {
  let now = place()
  const moved = (replaced) => {
    const [path, query] = now
    now = place()
    if (path !== now[0] || (query !== now[1] && !replaced)) page()
  }
  for (const name of ['pushState', 'replaceState']) {
    const original = history[name]
    history[name] = function (...given) {
      original.apply(this, given)
      setTimeout(moved, 0, name === 'replaceState')
    }
  }
  addEventListener('popstate', () => setTimeout(moved))
}

/**
 * Does as the visitor has decided. Only the page that was `told` keeps the decision: another one that follows could undo
 * the next.
 */
function decide(yes, told) {
  if (isBlocked() || (!told && yes === state.granted)) return
  if (yes) {
    state.refused = false
    state.granted = true
    remember('ingestd.id', recall('ingestd.id', ID) ?? random())
  } else {
    stop()
    forget()
    state.refused = state.options.beforeConsent !== 'anonymous'
  }
  if (told) remember('ingestd.consent', yes ? 'yes' : stores() && 'no')
  // After a refusal the memory has nothing but it.
  ;[...memory].forEach(([name, value]) => value && write(name, value))
  later(0)
}

/** The function never throws. */
const guarded =
  (work) =>
  (...given) => {
    try {
      work(...given)
    } catch (error) {
      count('unserializable')
      warn(error)
    }
  }

/** A function that waits for init. Its first argument is the note of the call. */
const safe = (work) =>
  guarded((...given) => {
    const seen = replayed || note()
    const call = guarded(() => work(seen, ...given))
    state.options ? call() : early.push(call)
  })

const known = (id) => `${id ?? ''}` || undefined

function addEvent(seen, name, data, fields, base) {
  send({ key: `${name}`, data }, seen, fields, { ...registered, ...base })
}

function addIdentify(seen, members, fields) {
  send({ ...members, type: 'identify', traits: members.traits ?? {} }, seen, fields)
}

export const init = guarded(begin)
export const track = safe(addEvent)
export const page = safe((seen, ...given) => {
  const names = []
  while (typeof given[0] === 'string' || (!given[0] && typeof given[1] === 'string')) names.unshift(given.shift())
  const [name, category] = names
  addEvent(seen, 'Page View', given[0], given[1], { name, category })
})
export const identify = safe((seen, id, traits, fields) => {
  if (isPlain(id)) [id, traits, fields] = [undefined, id, traits]
  user = known(id) ?? user
  addIdentify(seen, { userId: known(id), traits }, fields)
})
export const alias = safe((seen, userId, previousId) => {
  user = known(userId)
  addIdentify(seen, { userId: user, anonymousId: known(previousId) })
})
export const group = safe((seen, groupId, traits, fields) => {
  addIdentify(seen, { userId: user, traits: { groups: { [groupId]: traits ?? {} } } }, fields)
})
export const register = safe((seen, properties) => {
  if (!isPlain(properties)) throw TypeError()
  registered = { ...registered, ...copy(properties) }
})
export const reset = safe(() => {
  user = undefined
  registered = {}
  endCampaign()
  remember('ingestd.id', random())
})
export const consent = safe((seen, yes) => decide(yes === true, true))
export const ready = safe((seen, callback) => queueMicrotask(callback))
export const flush = safe(() => later(0))
export const anonymousId = () => (state.options && !state.refused ? visitor() : undefined)

export const api = { init, track, page, identify, alias, group, register, reset, consent, ready, flush, anonymousId }

const stub = globalThis.ingestd
if (Array.isArray(stub?.calls)) {
  const { calls } = stub
  // Functions that a script has taken before still push their calls.
  const push = guarded((each) => {
    const { at, url, title } = each
    const [name, ...given] = each
    // A script above the page's title has seen none.
    replayed = at > 0 && { at, url: `${url}`, title: `${title || document.title}` }
    api[name]?.(...given)
    replayed = undefined
  })
  Object.assign(stub, api, { calls: { push } })
  calls.forEach(push)
}
