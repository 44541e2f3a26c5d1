// The visitor of an event for which the backend knows none.

import { randomUUID } from 'node:crypto'

// User ids that many people have, as in ingestd's `[ids] unusable`. They make no visitor.
const NOBODY = new Set([
  '',
  'null', 'undefined', 'none', 'nil', 'nothing', 'undef', 'nullptr', '$null', 'void(0)', '(null)', '<null>', '[null]',
  '(nil)', '<nil>', '[nil]', '(none)', '<none>', '[none]', '[undefined]', '<undefined>', ':null', ':nil', ':undefined',
  'null,null', 'undefined,undefined', 'undefined undefined', 'null null', '%!s(<nil>)', '%!d(<nil>)', '%!v(<nil>)',
  '%!q(<nil>)', '%!x(<nil>)', '%!s(missing)', '%!d(missing)', '%!v(missing)', '%!q(missing)', '%!x(missing)',
  '<no value>', '<invalid value>', '<invalid reflect.value>', 'optional.empty', 'optional.absent()', 'optional[null]',
  'optional(nil)', 'optionalint.empty', 'optionallong.empty', 'some(null)', 'dbnull', 'dbnull.value', 'system.dbnull',
  'nonetype', 'nilclass', "<class 'nonetype'>", '<na>', '\\n', '#n/a', '#null!', '#ref!', '#value!', '#name?',
  '[object object]', '[object null]', '[object undefined]', '[object array]', '[object promise]', '[object function]',
  '[object asyncfunction]', '[object string]', '[object number]', '[object boolean]', '[object symbol]',
  '[object date]', '[object error]', '[object map]', '[object set]', '[object window]', '[object event]',
  '[object arguments]', '[object generator]', '[object htmlinputelement]', '[object htmldocument]', 'object', 'array',
  'system.object', 'system.object[]', 'system.string[]', 'system.collections.hashtable', 'nan', '-nan', '+nan',
  'nan(ind)', '-nan(ind)', '1.#qnan', '-1.#ind', 'inf', '-inf', '+inf', 'infinity', '-infinity', '+infinity', '∞',
  '-∞', '1.#inf', '-1.#inf', '0', '-0', '+0', '0.0', '-0.0', '0n', '0x0', '0e0', '-1', '-1.0', 'true', 'false',
  'guest', 'anonymous', 'anon', 'anonymoususer', 'unknown', 'unauthenticated', 'not_authenticated', 'n/a', '-',
  'not set', '(not set)', 'not_set', '(not provided)', '00000000-0000-0000-0000-000000000000',
  '{00000000-0000-0000-0000-000000000000}', '(00000000-0000-0000-0000-000000000000)',
  'urn:uuid:00000000-0000-0000-0000-000000000000', '00000000000000000000000000000000',
  'ffffffff-ffff-ffff-ffff-ffffffffffff', '{ffffffff-ffff-ffff-ffff-ffffffffffff}', 'ffffffffffffffffffffffffffffffff',
  '00000000000000000000000000', '000000000000000000000000',
])
const EDGE = '[\\s\\x1c-\\x1f\\x85\\xad\\u180e\\u200b-\\u200f\\u2060\\ufeff"\'`]+'
const EDGES = new RegExp(`^${EDGE}|${EDGE}$`, 'g')

/** As ingestd derives it for requests of Segment's SDKs, so both have one visitor of a user: a UUIDv8 of a digest. */
export function visitorOf(tenant, user) {
  if (user === undefined || NOBODY.has(user.replace(EDGES, '').toLowerCase())) return randomUUID()
  const name = ['visitor of user', tenant, user].map((part) => `${[...part].length}:${part}`).join('')
  const digest = blake2b(Buffer.from(name))
  digest[6] = (digest[6] & 0x0f) | 0x80
  digest[8] = (digest[8] & 0x3f) | 0x80
  return digest.toString('hex').replace(/(.{8})(.{4})(.{4})(.{4})(.*)/, '$1-$2-$3-$4-$5')
}

const INITIAL = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
]
// The order of the words in each round, a hexadecimal digit a word.
const ROUNDS = [
  '0123456789abcdef', 'ea489fd61c02b753', 'b8c052fdae367194', '7931dcbe265a40f8', '905724afe1bc683d',
  '2c6a0b834d75fe19', 'c51fed4a0763928b', 'db7ec13950f4862a', '6fe9b308c2d714a5', 'a2847615fb9e3cd0',
  '0123456789abcdef', 'ea489fd61c02b753',
].map((digits) => [...digits].map((digit) => parseInt(digit, 16)))
// The four columns and the four diagonals of the state.
const QUARTERS = ['048c', '159d', '26ae', '37bf', '05af', '16bc', '278d', '349e'].map((digits) =>
  [...digits].map((digit) => parseInt(digit, 16)),
)

/** BLAKE2b (RFC 7693) with 16 bytes. Node's own has 64, and a digest of another length is another one. */
function blake2b(message) {
  const state = new BigUint64Array(INITIAL)
  state[0] ^= 0x01010010n
  const padded = Buffer.alloc(Math.max(1, Math.ceil(message.length / 128)) * 128)
  message.copy(padded)
  for (let at = 0; at < padded.length; at += 128) {
    const isLast = at + 128 === padded.length
    mix(state, padded.subarray(at, at + 128), BigInt(isLast ? message.length : at + 128), isLast)
  }
  const digest = Buffer.alloc(16)
  digest.writeBigUInt64LE(state[0], 0)
  digest.writeBigUInt64LE(state[1], 8)
  return digest
}

function mix(state, block, count, isLast) {
  const words = Array.from({ length: 16 }, (_, index) => block.readBigUInt64LE(index * 8))
  const v = new BigUint64Array([...state, ...INITIAL])
  v[12] ^= count
  if (isLast) v[14] = ~v[14]
  const turn = (index, by, bits) => {
    const value = v[index] ^ v[by]
    v[index] = (value >> bits) | (value << (64n - bits))
  }
  for (const order of ROUNDS) {
    QUARTERS.forEach(([a, b, c, d], quarter) => {
      v[a] += v[b] + words[order[2 * quarter]]
      turn(d, a, 32n)
      v[c] += v[d]
      turn(b, c, 24n)
      v[a] += v[b] + words[order[2 * quarter + 1]]
      turn(d, a, 16n)
      v[c] += v[d]
      turn(b, c, 63n)
    })
  }
  for (let index = 0; index < 8; index++) state[index] ^= v[index] ^ v[index + 8]
}
