// What the shop keeps in the browser. Where it may not, the page keeps it, so that the shop is not blank.

const memory = new Map()
const ofPage = { getItem: (name) => memory.get(name) ?? null, setItem: (name, text) => memory.set(name, text), removeItem: (name) => memory.delete(name) }

function isAllowed() {
  try {
    return Boolean(window.localStorage)
  } catch {
    return false // the visitor blocks cookies
  }
}

export const storage = isAllowed() ? localStorage : ofPage
