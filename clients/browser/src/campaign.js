// The campaign of the visit: the last one that an address of the visit names.

import { campaignOf } from './addresses.js'
import { entry, read, write } from './device.js'
import { json } from './json.js'
import { isPlain, state } from './state.js'

const VISIT = 1800e3 // milliseconds without an event

let landed = false
let address // the last one that was read

/** How the browser came to this page. */
export const navigation = () => performance.getEntriesByType('navigation')[0] ?? { name: '' }

const isVisit = ({ found = {}, seen }) =>
  seen > 0 && isPlain(found) && Object.values(found).every((value) => typeof value === 'string' && value.length < 300)

/** The campaign after these further addresses. */
export function campaign(...addresses) {
  const now = Date.now()
  const { secrets } = state.options
  const kept = entry('ingestd.campaign', isVisit)
  const lasts = kept && Math.abs(now - kept.seen) < VISIT
  let found = lasts ? kept.found : undefined
  if (!landed) {
    landed = true
    const { name, type } = navigation()
    addresses.unshift(name) // the page may have changed its address since
    // The visitor has consented only on this page. A page that is reloaded has the referrer of its first time.
    const referrer = `${document.referrer}`
    if (!lasts && type === 'navigate' && isOwn(referrer) && json(campaignOf(referrer, secrets)) !== json(kept?.found)) {
      addresses.unshift(referrer)
    }
  }
  for (const each of addresses) {
    if (each === address) continue
    address = each
    const { nooverride, ...named } = campaignOf(each, secrets) ?? {}
    if (Object.keys(named).length && !(nooverride && found)) found = named
  }
  if (found || kept) write('ingestd.campaign', json({ found, seen: now }))
  return found
}

/** Ends the campaign, so that the address of the page before does not bring it back either. */
export function endCampaign() {
  write('ingestd.campaign', json({ seen: Date.now() }))
}

function isOwn(referrer) {
  const host = referrer.split('/')[2] ?? ''
  const { domain } = state.options
  return host === location.host || (domain && `.${host.split(':')[0]}`.endsWith(`.${domain}`))
}
