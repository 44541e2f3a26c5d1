import type { EventData } from './events.js'

export type * from './events.js'

export interface Options {
  /** The address of ingestd, such as `https://events.example.com`. */
  host: string
  /** A public key. */
  key: string
  /**
   * What happens until `consent(true)`. The default is `store`.
   *
   * - `store`: events are sent, and the visitor's id is kept on the device.
   * - `wait`: nothing is sent or kept on the device. Events wait in the memory of the page.
   * - `anonymous`: events are sent with an id that ends with the page. Nothing is kept on the device.
   */
  beforeConsent?: 'store' | 'wait' | 'anonymous'
  /** Sends and keeps nothing in a browser with Global Privacy Control. The default is false. */
  gpc?: boolean
  /** The domain of the cookies, such as `shop.example`: its subdomains then have one visitor. */
  domain?: string
  /** How long an event waits for others, in milliseconds. The default is 1000. */
  interval?: number
  /** Writes refused events and other faults to the console. The default is false. */
  debug?: boolean
}

/** Further members of an event or identify request. */
export interface Fields {
  /** The e-mail or push that led to this event. */
  dispatchId?: string
  /** Members that replace or extend those of the client. */
  context?: Record<string, unknown>
  [name: string]: unknown
}

/** Begins to send. Calls of the other functions wait for this one. A second call has no effect. */
export function init(options: Options): void

/** Sends an event with one of the built-in keys. */
export function track<K extends keyof EventData>(key: K, data?: EventData[K], fields?: Fields): void
/** Sends an event with a key of the shop's own schemas. */
export function track<K extends string>(
  key: K extends keyof EventData ? never : K,
  data?: Record<string, unknown>,
  fields?: Fields,
): void

/** Sends a Page View. */
export function page(data?: EventData['Page View'], fields?: Fields): void

/** Links the visitor to a user, and stores traits. Without a user, the traits are the visitor's. */
export function identify(userId: string | null, traits?: Record<string, unknown>, fields?: Fields): void

/** Begins a new visitor. Call it after a sign-out. */
export function reset(): void

/** Keeps the visitor's decision. `false` removes everything that the client has kept on the device. */
export function consent(given: boolean): void
