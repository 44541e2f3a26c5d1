// The browser client of ingestd: docs/browser.md. ingestd.d.ts has its types.

const VISIT = 1800e3 // milliseconds without an event
const KNOWN = 82800e3 // the daemon knows a messageId for an hour more
const LONGEST = 600e3 // pause
const MOST = 500 // waiting events
const ROOM = 20e3 // characters: an ending page may send 64 KiB
const CLICK_ID = /^([gd]clid|[gw]braid|fbclid|msclkid|ttclid|twclid|li_fat_id)$/

/** What the device cannot or must not keep. @type {Map<string, string>} */
const memory = new Map()
/** Calls before init. @type {(() => void)[]} */
const early = []

/** @type {import('./ingestd.d.ts').Options} */
let options
let granted = false // whether the device may keep anything
let refused = false // whether events are dropped
let query // the last one that was read
let tab
let stamp = 0
let attempts = 0
let request // its AbortController
let timer

function random() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join('')
}

function warn(...words) {
  if (options?.debug) console.warn('ingestd:', ...words)
}

/** Undefined if storage is forbidden or full. */
function device(work) {
  try {
    if (granted) return work()
  } catch {}
}

function read(name) {
  return memory.get(name) ?? device(() => localStorage.getItem(name))
}

function write(name, value) {
  memory.set(name, value)
  device(() => {
    localStorage.setItem(name, value)
    memory.delete(name)
  })
}

function remove(name) {
  memory.delete(name)
  device(() => localStorage.removeItem(name))
}

function names(start) {
  const all = { ...device(() => localStorage), ...Object.fromEntries(memory) }
  return Object.keys(all)
    .filter((name) => name.startsWith(start))
    .sort()
}

function keep(name, ...values) {
  write(name, JSON.stringify(values))
}

function list(name) {
  try {
    const value = JSON.parse(read(name))
    if (Array.isArray(value)) return value
  } catch {}
  return []
}

/** With a domain the cookie has another name, since a cookie of the host alone would hide it. */
function jar(name) {
  return options.domain ? `${name}.${options.domain}` : name
}

function bake(name, value) {
  const domain = options.domain ? `; domain=${options.domain}` : ''
  device(() => {
    document.cookie = `${jar(name)}=${value}; path=/; max-age=${value ? 31536000 : 0}; samesite=lax${domain}`
  })
}

/** The cookie goes first: another tab or subdomain may have just set it. */
function recall(name) {
  return memory.get(name) ?? device(() => document.cookie.match(`(^|; )${jar(name)}=(\\w+)`)?.[2]) ?? read(name)
}

function remember(name, value) {
  write(name, value)
  bake(name, value)
  return value
}

function stop() {
  request?.abort()
  request = undefined
}

function forget() {
  stop()
  granted = true
  names('ingestd.').forEach(remove)
  for (const name of ['ingestd.id', 'ingestd.consent']) bake(name, '')
  granted = false
}

/** The campaign of the visit: the last one in a page's query. */
function campaign() {
  const now = Date.now()
  let [found, seen] = list('ingestd.campaign')
  if (!(now - seen < VISIT)) found = undefined
  if (location.search !== query) {
    query = location.search
    const named = {}
    for (const [name, value] of new URLSearchParams(query)) {
      if (!value.trim()) continue
      if (name.startsWith('utm_')) named[name === 'utm_campaign' ? 'name' : name.slice(4)] = value
      if (CLICK_ID.test(name)) [named.click_id, named.click_id_type] = [value, name]
    }
    if (Object.keys(named).length) found = named
  }
  if (found) keep('ingestd.campaign', found, now)
  return found
}

function drop(name) {
  remove(name)
  keep('ingestd.dropped', 1 + (list('ingestd.dropped')[0] ?? 0))
}

function add(event) {
  if (refused) return
  const now = Date.now()
  stamp = Math.max(stamp + 1, now * 1000)
  keep(`ingestd.q${stamp}${tab}`, options.key, {
    ...event,
    anonymousId: remember('ingestd.id', recall('ingestd.id') ?? random()),
    messageId: random(),
    timestamp: new Date(now).toISOString(),
    context: {
      page: { url: location.href, referrer: document.referrer, title: document.title },
      locale: navigator.language,
      campaign: campaign(),
      library: { name: 'ingestd.js', version: '0.1.0', dropped: list('ingestd.dropped')[0] },
      ...event.context,
    },
  })
  let size = 0
  names('ingestd.q')
    .reverse()
    .forEach((name, index) => {
      size += read(name)?.length ?? 0
      if (index >= MOST || size > 1e6) drop(name)
    })
  later(options.interval)
}

function later(wait) {
  timer ??= setTimeout(send, wait)
}

/** The oldest events of one key that fit into a request. */
function oldest(now) {
  const batch = []
  let size = 0
  for (const name of names('ingestd.q')) {
    const text = read(name)
    if (!text) continue // another tab has sent it
    const [key, event, tried] = list(name)
    // The daemon may have stored it, and forgotten its messageId.
    if (!event || now - tried > KNOWN) drop(name)
    else if (key === (batch[0]?.key ?? key)) {
      size += text.length
      if (batch.length && size > ROOM) break
      batch.push({ name, text, key, event, tried })
    }
  }
  return { batch, size }
}

async function send(leaving) {
  clearTimeout(timer)
  timer = undefined
  if (request || !(granted || options.beforeConsent === 'anonymous') || refused || !navigator.onLine) return
  const now = Date.now()
  const [holder, until] = list('ingestd.turn')
  // Another tab sends, or all wait after a failure. A later time is a wrong clock's.
  const free = holder === tab || (leaving && holder === 'gone') || !(until > now && until - now < 2 * LONGEST)
  if (!free) return later(holder ? 1000 : until - now)
  const { batch, size } = oldest(now)
  if (!batch.length) return
  const { key } = batch[0]
  keep('ingestd.turn', tab, now + 35e3)
  for (const { name, event, tried } of batch) if (!tried) keep(name, key, event, now)
  const mine = (request = new AbortController())
  setTimeout(() => mine.abort(), 30e3)
  let wait = 0
  const again = ({ status }) => status >= 500 || status === 429 || status === 408
  try {
    const answer = await fetch(`${options.host.replace(/\/$/, '')}/api/v1/analytics/batch`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ events: batch.map(({ event }) => event) }),
      credentials: 'omit',
      keepalive: size <= ROOM,
      signal: mine.signal,
    })
    const { status } = answer
    const told = { ...(await answer.json().catch(() => {})), status }
    if (request !== mine) return
    const results = status === 200 ? told.results : batch.map(() => told)
    batch.forEach(({ name, text, event }, index) => {
      const result = results[index]
      if (again(result)) return write(name, text) // for certain, it is not stored
      remove(name)
      const faults = result.errors?.map(({ pointer, message }) => `${pointer}: ${message}`) ?? [result.detail]
      if (result.status !== 200) warn(result.status, event.key ?? event.type, ...faults)
    })
    if (results.some(again)) wait = Math.min(LONGEST, 1000 * Number(answer.headers.get('retry-after'))) || -1
  } catch (error) {
    if (request !== mine) return
    warn(error)
    wait = -1
  }
  request = undefined
  if (wait) {
    wait = wait > 0 ? wait : Math.min(60e3, 1000 * 2 ** attempts++)
    wait *= 1 + Math.random() / 2
    keep('ingestd.turn', '', Date.now() + wait)
  } else {
    attempts = 0
    remove('ingestd.turn')
  }
  if (names('ingestd.q').length) later(wait)
}

function leave() {
  if (names('ingestd.q').some((name) => list(name).length === 2)) stop()
  send(true)
}

const blocked = () => options.gpc && navigator.globalPrivacyControl
const stores = () => options.beforeConsent === 'store'

function start(given) {
  if (options) return
  options = { beforeConsent: 'store', interval: 1000, ...given }
  tab = random()
  refused = blocked()
  granted = true // to read the visitor's decision
  const decision = recall('ingestd.consent')
  granted = decision ? decision === 'yes' : stores()
  if (refused) forget()
  refused ||= decision === 'no'
  addEventListener('online', () => {
    if (list('ingestd.turn')[0] === '') remove('ingestd.turn')
    send()
  })
  addEventListener('visibilitychange', () => document.hidden && leave())
  addEventListener('pagehide', () => {
    leave()
    // Nobody hears the answer, so the next page waits only briefly.
    if (list('ingestd.turn')[0] === tab) keep('ingestd.turn', 'gone', Date.now() + 2000)
  })
  addEventListener('storage', ({ key, newValue }) => {
    if (key === 'ingestd.consent' && (newValue === 'yes') !== granted) decide(newValue === 'yes')
  })
  campaign()
  early.splice(0).forEach((call) => call())
  later(options.interval) // for events of earlier pages
}

function decide(yes) {
  if (blocked()) return
  if (yes) {
    granted = true
    refused = false
    const id = memory.get('ingestd.id')
    memory.delete('ingestd.id') // another tab may have been first
    remember('ingestd.id', recall('ingestd.id') ?? id ?? random())
    remember('ingestd.consent', 'yes')
    ;[...memory].forEach((entry) => write(...entry))
    later(0)
  } else {
    forget()
    refused = options.beforeConsent !== 'anonymous'
    if (!stores()) return
    granted = true // only for the decision
    remember('ingestd.consent', 'no')
    granted = false
  }
}

/** The function never throws, and waits for init. */
function safe(work, now) {
  return (...given) => {
    try {
      if (options || now) work(...given)
      else if (early.length < MOST) early.push(() => safe(work)(...given))
    } catch (error) {
      warn(error)
    }
  }
}

export const init = safe(start, true)
export const track = safe((key, data = {}, fields) => add({ ...fields, key, data }))
export const page = (data, fields) => track('Page View', data, fields)
export const identify = safe((userId, traits = {}, fields) =>
  add({ ...fields, type: 'identify', userId: userId && `${userId}`, traits }),
)
export const reset = safe(() => {
  remove('ingestd.campaign')
  remember('ingestd.id', random())
})
export const consent = safe(decide)

const api = { init, track, page, identify, reset, consent }

const stub = globalThis.window?.ingestd
if (Array.isArray(stub?.calls)) {
  const call = ([name, ...given]) => api[name]?.(...given)
  const calls = stub.calls
  Object.assign(stub, api, { calls: { push: call } })
  calls.forEach(call)
}
