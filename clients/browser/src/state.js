// What all parts of the client know.

export const state = {
  /** @type {import('../ingestd.d.ts').Options} */
  options: undefined,
  /** Whether the device may keep anything. */
  granted: false,
  /** Whether events are dropped. */
  refused: false,
}

export const isPlain = (value) => typeof value === 'object' && value && !Array.isArray(value)

export function warn(...words) {
  if (state.options?.debug) console.warn('ingestd:', ...words)
}

export function random() {
  let text = ''
  for (const part of crypto.getRandomValues(new Uint32Array(4))) text += part.toString(36)
  return text
}
