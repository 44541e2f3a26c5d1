// Sends the events of a queue in batches, one request at a time.

import { createHmac } from 'node:crypto'

const PATH = '/api/v1/analytics/customer-events/batch'
const MOST = 100 // events of a request
const LARGEST = 250_000 // bytes of a request: the budget of wrong signatures begins above
const LONGEST_PAUSE = 600e3
const LOOKS_AGAIN = 60e3
const GIVEN_UP = 86_400e6 // microseconds
const STRANGERS = 3
const AT_END = 5000 // milliseconds in which the end of the process sends

/** ingestd refuses the key or its signature (401), or the key has no grant (403). The events stay in the queue. */
export class KeyRefused extends Error {
  name = 'KeyRefused'
}

export class Sender {
  refusal
  #queue
  #options
  #url
  #most = MOST
  #failures = 0
  #strangers = 0
  #pausedUntil = 0
  #hasWork = true
  #sending
  #isClosed = false
  #timer
  #due
  #endsAt = Infinity
  #atExit = () => {
    this.#endsAt = Math.min(this.#endsAt, performance.now() + AT_END)
    if (this.#sending) setImmediate(() => {}) // then it goes on
    else if (this.#hasWork) this.wake(0, true)
  }

  constructor(queue, options) {
    this.#queue = queue
    this.#options = options
    const { host } = options
    if (!/^https?:\/\/[^/]/i.test(host)) throw new TypeError(`${host} is no address such as https://events.example.com`)
    const url = new URL(host)
    this.#url = url.href.replace(/\/*$/, PATH)
    // The timers do not keep the process alive, so what waits is sent at its end.
    process.on('beforeExit', this.#atExit)
    this.#later(options.interval)
  }

  /** Sends soon, or at once. Not during a pause. */
  wake(wait = this.#options.interval, ends = false) {
    this.#hasWork = true
    if (wait === 0) this.refusal = undefined
    if (!ends) {
      this.#endsAt = Infinity
      this.#later(wait)
    } else if (performance.now() >= this.#pausedUntil) this.#send()
    else this.#hasWork = false
  }

  async close() {
    this.#endsAt = performance.now() + AT_END
    clearTimeout(this.#timer)
    await this.#sending
    if (this.#hasWork && !this.refusal && performance.now() >= this.#pausedUntil) await this.#send()
    clearTimeout(this.#timer)
    process.off('beforeExit', this.#atExit)
    this.#isClosed = true
  }

  #later(wait) {
    const at = Math.max(performance.now() + wait, this.#pausedUntil)
    if (this.#isClosed || (this.#timer && this.#due <= at)) return
    clearTimeout(this.#timer)
    this.#due = at
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#send()
    }, at - performance.now()).unref()
  }

  #send() {
    this.#sending ??= this.#run().finally(() => (this.#sending = undefined))
    return this.#sending
  }

  async #run() {
    if (this.refusal) return
    this.#hasWork = false
    let again = LOOKS_AGAIN // when an event that was held may be due
    try {
      if (await this.#queue.lock()) {
        try {
          const pause = await this.#sendAll()
          this.#pausedUntil = performance.now() + pause
          this.#hasWork ||= pause > 0
        } finally {
          await this.#queue.unlock()
        }
      } else again = 1000
    } catch (error) {
      if (error instanceof KeyRefused) {
        this.refusal = error
        console.error(`ingestd: ${error.message}; events stay in the queue`)
        return
      }
      console.error('ingestd: sending has failed', error)
      this.#pausedUntil = performance.now() + LOOKS_AGAIN
    }
    this.#later(this.#hasWork ? this.#options.interval : again)
  }

  /** Sends what waits. Returns after how many milliseconds to try again; 0: nothing failed. */
  async #sendAll() {
    for await (const page of this.#queue.pages()) {
      for (let names = page; ; ) {
        const { batch, rest } = await this.#take(names)
        if (!batch.length) break
        await this.#queue.keepLock()
        const { pause, isBack } = await this.#deliver(batch)
        if (pause) return pause
        // It keeps no process alive that has nothing else to do, so `#atExit` is called.
        await new Promise((resolve) => setTimeout(resolve, 0).unref())
        if (performance.now() > this.#endsAt) return 0
        names = isBack ? [...batch.map(({ name }) => name), ...rest] : rest
      }
    }
    return 0
  }

  /** Sends these events. Returns a pause, or whether to send them again in smaller batches. */
  async #deliver(batch) {
    const answer = await this.#post(`{"events":[${batch.map(({ event }) => event).join()}]}`)
    if (answer.failure) return { pause: this.#pause(answer.failure) }
    const { status, told } = answer
    const results = status === 200 && Array.isArray(told.results) && told.results.every(isResult) ? told.results : []
    const isOwn = `${told.type}`.startsWith('urn:ingestd:')
    if (results.length === batch.length) {
      const isLimited = await this.#settle(batch, results)
      this.#strangers = 0
      this.#most = Math.min(MOST, this.#most * 2)
      if (isLimited) return { pause: this.#pause('some events cannot be stored at the moment', answer) }
      this.#failures = 0
    } else if (isOwn && (status === 401 || status === 403)) {
      throw new KeyRefused(`${status} ${told.code}: ${told.detail}`)
    } else if (!isOfEvents(status, isOwn)) {
      return { pause: this.#pause(`status ${status}`, answer) }
    } else if (batch.length > 1) {
      this.#most = batch.length >> 1 // to find the event at fault
      return { isBack: true }
    } else if (isOwn) {
      await this.#refuse(batch[0], told)
    } else {
      await this.#queue.hold(batch[0].name)
      if (++this.#strangers >= STRANGERS) return { pause: this.#pause(`status ${status}, not of ingestd`, answer) }
    }
    return {}
  }

  /** The oldest events for a request, and the names of the others. */
  async #take(names) {
    const batch = []
    let size = 0
    let at = 0
    for (; at < names.length && batch.length < this.#most; at++) {
      const event = await this.#queue.read(names[at])
      if (event === undefined) continue
      size += Buffer.byteLength(event) + 1
      if (batch.length && size > LARGEST) break
      batch.push({ name: names[at], event })
    }
    return { batch, rest: names.slice(at) }
  }

  async #post(body) {
    const { key, secret, timeout } = this.#options
    const signature = createHmac('sha256', secret).update(body).digest('hex')
    try {
      const answer = await fetch(this.#url, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', 'x-signature': signature },
        body,
        redirect: 'manual',
        signal: AbortSignal.timeout(timeout),
      })
      const text = await answer.text()
      return { status: answer.status, told: parsed(text), retryAfter: answer.headers.get('retry-after') }
    } catch (error) {
      return { failure: `${error.message} ${error.cause?.message ?? ''}`.trim() }
    }
  }

  /** Does with each event what its result says. Returns whether ingestd asks to wait. */
  async #settle(batch, results) {
    let isLimited = false
    for (const [index, each] of batch.entries()) {
      const result = results[index]
      const isYoung = Number(each.name.slice(0, 16)) > Date.now() * 1000 - GIVEN_UP
      if (result.status === 200) await this.#queue.remove(each.name)
      else if (result.status === 429 || result.status === 503) isLimited = true
      else if (result.status === 500 && isYoung) await this.#queue.hold(each.name)
      else await this.#refuse(each, result)
    }
    return isLimited
  }

  async #refuse({ name, event }, problem) {
    await this.#queue.remove(name)
    const read = parsed(event) // a power cut may have spoilt the file
    const { onRefused } = this.#options
    try {
      if (onRefused) await onRefused(read, problem)
      else console.warn(`ingestd refused ${read.key ?? 'identify'} ${read.messageId}: ${JSON.stringify(problem)}`)
    } catch (error) {
      console.error('ingestd: onRefused has failed', error)
    }
  }

  /** The next pause: what ingestd asks for, or else longer after each failure. */
  #pause(why, answer) {
    if (!this.#failures) console.warn(`ingestd takes no events (${why}); they wait in the queue`)
    this.#failures++
    const { retryAfter = '' } = answer ?? {}
    const asked = /^\d+$/.test(retryAfter) ? 1000 * retryAfter : Date.parse(retryAfter) - Date.now()
    const wait = asked > 0 ? asked : 500 * 2 ** Math.min(this.#failures - 1, 7)
    return Math.min(LONGEST_PAUSE, wait) * (1 + Math.random() / 2)
  }
}

/** A result of one event, and not of a proxy. */
const isResult = (value) => value?.status === 200 || typeof value?.code === 'string'

/** Whether other events could have another answer: the body is refused, or a firewall has answered. */
function isOfEvents(status, isOwn) {
  if (isOwn) return status === 400 || status === 413
  return status === 200 || (status >= 400 && status < 500 && status !== 408 && status !== 429)
}

function parsed(text) {
  try {
    const value = JSON.parse(text)
    return value && typeof value === 'object' ? value : {}
  } catch {
    return {}
  }
}
