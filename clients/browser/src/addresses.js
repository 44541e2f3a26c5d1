// What an address of a page says of a campaign, and the address without what must not leave the page.

const LONGEST = 4096
const LONGEST_VALUE = 256
/** Those that name a campaign. Others, as `utm_id`, accompany them. */
const TAGS = ['source', 'medium', 'name', 'term', 'content', 'click_id']
const CLICK_ID = /^(([dgy]|fb|tt|tw)clid|[gw]braid|msclkid|li_fat_id|ScCid|epik|rdt_cid)$/i

/** An e-mail address, encoded any number of times. */
const MAIL = /[^\s@](@|%(25)*40)[^\s@]+\.\w/i

/** Words in the name of a parameter that make its value a secret. */
export const SECRETS =
  'token code password passwd pass pwd key apikey secret credential auth signature sig session sessid sid otp pin ' +
  'jwt email mail phone'

/** The campaign in the query of an address, otherwise in its fragment, without secrets; undefined if there is none. */
export function campaignOf(address, words) {
  const [start, fragment = ''] = address.split(/#(.*)/s)
  const [path, inside] = fragment.split(/\?(.*)/s)
  return campaignIn(start.split(/\?(.*)/s)[1], words) ?? campaignIn(inside || path, words)
}

function campaignIn(query, words) {
  const found = { __proto__: null }
  for (const [name, given] of new URLSearchParams(`&${query}`)) {
    const value = given.trim().slice(0, LONGEST_VALUE)
    if (!value || isSecret([[name, value]], words)) continue
    const tag = /^utm_([a-z]\w{0,30})$/i.exec(name)?.[1].toLowerCase()
    if (tag) found[tag === 'campaign' ? 'name' : tag] ??= value
    if (CLICK_ID.test(name) && !found.click_id) [found.click_id, found.click_id_type] = [value, name]
  }
  if (TAGS.some((name) => found[name])) return found
}

/** The address without fragment, user and secrets. `words` are like `SECRETS`. */
export function withoutSecrets(address, words) {
  const [place, query = ''] = `${address}`.split('#')[0].slice(0, LONGEST).split(/\?(.*)/s)
  const kept = (text, part) => text.replace(part, (each) => (isSecret(new URLSearchParams(each), words) ? '' : each))
  const path = kept(place.replace(/\/\/[^/]*@/, '//'), /[&;]?[^/&;]+/g)
  const parameters = kept(query, /[&;]?[^&;]+/g).replace(/^[&;]+/, '')
  return parameters ? `${path}?${parameters}` : path
}

function isSecret([[name, value] = ['', '']], words) {
  if (MAIL.test(name + value)) return true
  const parts = name.replace(/([a-z])([A-Z])/g, '$1 $2').toLowerCase().split(/\P{L}+/u)
  // Long words are found in `accesstoken` too, but `key` is not found in `monkey`.
  const isIn = (word) => parts.some((each) => each === word || (word[4] && each.includes(word)))
  if (value && words.some(isIn)) return true
  // An address as a value has parameters, too.
  const inside = value.replace(/%3d/gi, '=').split(/[?&#;]|%3f|%26|%23/i)
  return inside.some((each) => each.includes('=') && isSecret(new URLSearchParams(each), words))
}
