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
   * - `wait`: nothing is sent or kept on the device. Up to 500 events wait in the memory of the page, and end with it.
   * - `anonymous`: events are sent with an id that ends with the page. Nothing is kept on the device.
   */
  beforeConsent?: 'store' | 'wait' | 'anonymous'
  /** Sends and keeps nothing in a browser with Global Privacy Control. The default is false. */
  gpc?: boolean
  /** The domain of the cookies, by default the host of the page. All subdomains of `shop.example` have one visitor. */
  domain?: string
  /** How long an event waits for others, in milliseconds, after the first one of the page. The default is 1000. */
  interval?: number
  /**
   * Sends a Page View when a single-page shop changes its path or query by the history API (`replaceState` with the same
   * path is no view), or its path behind `#/` or `#!/`. `page()` sends the first one. The default is false.
   */
  singlePage?: boolean
  /** Sends a Page View when the browser restores a page on the way back. The default is false. */
  restored?: boolean
  /** Words in the name of a parameter that make it a secret, in place of the list in docs/browser-client.md. */
  secrets?: readonly string[]
  /** Gets each event, and returns it or another one, or null to drop it. If it throws, the event is dropped and counted. */
  before_send?: (event: Event) => Event | null | undefined | void
  /** Writes faults to the console, and events not stored with the daemon's result. The default is false. */
  debug?: boolean
}

/** An event or identify request, as it is sent. */
export interface Event {
  key?: string
  type?: 'identify'
  data?: Record<string, unknown>
  traits?: Record<string, unknown>
  anonymousId: string
  userId?: string
  messageId: string
  timestamp: string
  context: Record<string, unknown>
  [name: string]: unknown
}

/** Further members of an event or identify request. */
export interface Fields {
  /** The e-mail or push that led to this event. */
  dispatchId?: string
  /** Members that replace or extend those of the client. */
  context?: Record<string, unknown>
  [name: string]: unknown
}

type Traits = Record<string, unknown>

/** Begins to send. Earlier calls wait for this one. A second call has no effect. */
export function init(options: Options): void

/** Sends an event with one of the built-in keys, or with a key of the shop's own schemas. */
export function track<K extends keyof EventData | (string & {})>(
  key: K,
  data?: K extends keyof EventData ? EventData[K] : Record<string, unknown>,
  fields?: Fields,
): void

/** Sends a Page View. */
export function page(data?: EventData['Page View'], fields?: Fields): void
/** Sends a Page View with `name` in its data. */
export function page(name: string, data?: EventData['Page View'], fields?: Fields): void
/** Sends a Page View with `category` and `name` in its data. */
export function page(category: string, name: string, data?: EventData['Page View'], fields?: Fields): void

/** Links the visitor to a user, and stores traits. Without a user, the traits are the visitor's. */
export function identify(userId: string | number | null, traits?: Traits, fields?: Fields): void
/** Stores traits of the visitor. */
export function identify(traits: Traits, fields?: Fields): void

/** Links the visitor with the id `previousId`, or else this visitor, to a user. */
export function alias(userId: string | number, previousId?: string): void

/** Stores the trait `groups` of the user of this page's last `identify`, or else of the visitor: a company, for example. */
export function group(groupId: string | number, traits?: Traits, fields?: Fields): void

/** Adds members to the data of all later events of this page. */
export function register(properties: Record<string, unknown>): void

/** Begins a new visitor. Call it after a sign-out. */
export function reset(): void

/** Keeps the visitor's decision: docs/browser-client.md. */
export function consent(given: boolean): void

/** Calls a function as soon as the client has begun. */
export function ready(callback: () => void): void

/** Sends waiting events at once. */
export function flush(): void

/** The visitor's id; undefined before the client has begun, and if the visitor has refused. */
export function anonymousId(): string | undefined
