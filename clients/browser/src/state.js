// What all parts of the client know.

/**
 * `granted`: whether the device may keep anything. `refused`: whether events are dropped.
 *
 * @type {{ options?: import('../ingestd.d.ts').Options, granted?: boolean, refused?: boolean }}
 */
export const state = {}

export const isPlain = (value) => typeof value === 'object' && value && !Array.isArray(value)

export function warn(...words) {
  if (state.options?.debug) console.warn('ingestd:', ...words)
}

export function random() {
  let text = ''
  for (const part of crypto.getRandomValues(new Uint32Array(4))) text += part.toString(36)
  return text
}
