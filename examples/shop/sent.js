// Shows what was really sent: the events that ingestd has answered. An event that was only tried is not among them.

import { decision } from '/consent.js'
import { storage } from '/storage.js'

const list = document.getElementById('sent')
const items = new Map() // by message id: an event may be answered again
const MOST = 12
const PATIENCE = 2000 // milliseconds in which the client usually loads

/** Listens to the client's requests. A shop does not need this. */
export function showAnswers() {
  const { fetch } = window
  window.fetch = async (url, init) => {
    const answer = await fetch(url, init)
    if (`${url}`.endsWith('/analytics/batch')) read(answer.clone(), JSON.parse(init.body).events)
    return answer
  }
  setInterval(showWaiting, 500)
  showWaiting()
}

async function read(answer, events) {
  if (!/json/.test(answer.headers.get('content-type'))) return // somebody on the way has answered
  const told = await answer.json()
  events.forEach((event, index) => {
    const { status, code } = told.results?.[index] ?? told
    if (status === 200) showItem(event, 'stored')
    else if (status < 500 && status !== 429) showItem(event, `refused: ${code}`)
  })
  showWaiting()
}

function showItem({ messageId, key, data, context }, outcome) {
  const item = items.get(messageId) ?? document.createElement('li')
  items.set(messageId, item)
  list.prepend(item)
  if (list.children.length > MOST) list.lastChild.remove()
  const detail = data?.order_id ?? data?.name ?? (key === 'Page View' && context.campaign?.source)
  item.className = outcome === 'stored' ? 'stored' : 'refused'
  item.textContent = [key ?? 'Identify', detail, outcome].filter(Boolean).join(' · ')
}

function showWaiting() {
  document.getElementById('waiting').textContent = waiting()
}

/** The client keeps events that wait under such names. Its first script keeps calls until the client has loaded. */
function waiting() {
  if (decision() === 'no') return 'Nothing is sent: you have said no.'
  if (Array.isArray(window.ingestd.calls) && performance.now() > PATIENCE) return 'ingestd is away. The shop works without it.'
  const count = Object.keys(storage).filter((name) => name.startsWith('ingestd.q')).length
  if (count) return count === 1 ? 'One event waits for its answer.' : `${count} events wait for their answers.`
  return items.size ? '' : 'Nothing yet.'
}
