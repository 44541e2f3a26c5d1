import type { EventData } from './events.js'

export type * from './events.js'

export interface Options {
  /** The address of ingestd, such as `https://events.example.com`. */
  host: string
  /** The id of a server key. */
  key: string
  secret: string
  /** The tenant of the key. */
  tenant: string
  /** Where events wait. The default is `ingestd-queue`. */
  folder?: string
  /** About how many events may wait. The default is 100,000. */
  most?: number
  /** How long an event waits for others, in milliseconds. The default is 1000. */
  interval?: number
  /** How long a request may take, in milliseconds. The default is 20,000. */
  timeout?: number
  /** Gets an event that ingestd refuses, and the problem. Without it, both are logged. */
  onRefused?: (event: Record<string, unknown>, problem: Record<string, unknown>) => unknown
}

/** Further members of an event or identify request. */
export interface Fields {
  /** The visitor, from the browser's cookie. Without it the visitor is derived from the user, or is a new one. */
  anonymousId?: string | null
  userId?: string | number | null
  messageId?: string
  /** The time of the event. The default is the time of the call. */
  timestamp?: string | Date
  sessionId?: string
  dispatchId?: string
  context?: Record<string, unknown>
  [name: string]: unknown
}

/** Sends the events of a backend. */
export class Client {
  constructor(options: Options)
  /**
   * Keeps an event on disk, to be sent soon, and returns its `messageId`. Throws `QueueFull` if too many events wait,
   * and an error of the file system if the disk is full.
   */
  track<K extends keyof EventData | (string & {})>(
    key: K,
    data?: K extends keyof EventData ? EventData[K] : Record<string, unknown>,
    fields?: Fields,
  ): string
  /** Links the visitor to the user, and stores traits. Everything else is as in `track`. */
  identify(userId: string | number | null, traits?: Record<string, unknown>, fields?: Fields): string
  /** Sends what waits. False: some of it still waits after `timeout` milliseconds (10,000). Throws `KeyRefused`. */
  flush(timeout?: number): Promise<boolean>
  /** Sends once more what waits, for at most about 5 seconds. What cannot be sent stays on disk for the next client with the same folder. */
  close(): Promise<void>
}

/** As many events wait as may wait. This one is not kept. */
export class QueueFull extends Error {}

/** ingestd refuses the key or its signature (401), or the key has no grant (403). The events stay in the queue. */
export class KeyRefused extends Error {}
