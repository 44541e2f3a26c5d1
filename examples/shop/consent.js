// The visitor's decision. The shop keeps it, because ingestd may be away when it is made; each page tells ingestd.

import { storage } from '/storage.js'

const { consent } = window.ingestd
const NAME = 'shop.consent'

/** `yes`, `no`, or null before a decision. */
export const decision = () => storage.getItem(NAME)

export function decide(yes) {
  storage.setItem(NAME, yes ? 'yes' : 'no')
  consent(yes)
}

/** Called before any event of the page. */
export function tellDecision() {
  if (decision()) consent(decision() === 'yes')
}
