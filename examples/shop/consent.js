// The visitor's decision. The shop keeps it, because ingestd may be away when it is made; each page tells ingestd.

import { storage } from '/storage.js'

const { consent, ready } = window.ingestd
const NAME = 'shop.consent'

/** `yes`, `no`, or null before a decision. */
export const decision = () => storage.getItem(NAME)

export function decide(yes) {
  storage.setItem(NAME, yes ? 'yes' : 'no')
  consent(yes)
}

/** Called before any event of the page. Once ingestd is there, the decision may be a newer one, of another tab. */
export function tellDecision() {
  ready(() => decision() && consent(decision() === 'yes'))
}
