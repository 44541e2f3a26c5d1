// The client for backends in Node.js: it signs events, keeps them on disk, and sends them until ingestd has them.

import { randomUUID } from 'node:crypto'

import { QueueFolder } from './folder.js'
import { Sender } from './sender.js'
import { visitorOf } from './visitor.js'

export { QueueFull } from './folder.js'
export { KeyRefused } from './sender.js'

export class Client {
  #queue
  #sender
  #tenant

  constructor({ host, key, secret, tenant, folder = 'ingestd-queue', most = 100_000, ...options }) {
    for (const [name, value] of Object.entries({ host, key, secret, tenant }))
      if (typeof value !== 'string') throw new TypeError(`${name} must be a string`) // an unset variable is undefined
    this.#tenant = tenant
    this.#queue = new QueueFolder(folder, most)
    this.#sender = new Sender(this.#queue, { interval: 1000, timeout: 20_000, ...options, host, key, secret })
  }

  track(key, data = {}, fields = {}) {
    return this.#add({ key, data, ...fields })
  }

  identify(userId, traits = {}, fields = {}) {
    return this.#add({ type: 'identify', traits, userId, ...fields })
  }

  #add({ anonymousId, userId, ...event }) {
    const user = userId == null ? undefined : `${userId}`
    const visitor = anonymousId || visitorOf(this.#tenant, user)
    const timestamp = new Date().toISOString()
    const whole = { messageId: randomUUID(), timestamp, anonymousId: visitor, userId: user, ...event }
    this.#queue.add(JSON.stringify(whole))
    this.#sender.wake()
    return whole.messageId
  }

  async flush(timeout = 10_000) {
    const deadline = performance.now() + timeout
    const newest = await this.#queue.newest()
    this.#sender.wake(0)
    for (let pause = 10; await this.#queue.hasUntil(newest); pause = Math.min(pause * 1.5, 200)) {
      if (this.#sender.refusal) throw this.#sender.refusal
      if (performance.now() > deadline) return false
      await new Promise((resolve) => setTimeout(resolve, pause))
    }
    return true
  }

  close() {
    return this.#sender.close()
  }
}
