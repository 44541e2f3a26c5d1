// A shop of a few pages. The page is chosen by `page` in the query.

import { CURRENCY, PRODUCTS, dataOf, money } from '/products.js'
import { MOST, empty, lines, pieces, quantityOf, setQuantity, sums } from '/cart.js'
import { decide, decision, tellDecision } from '/consent.js'
import { showAnswers } from '/sent.js'
import { storage } from '/storage.js'
import { host, key, operators } from '/config.js'

// The functions of the page's first script. They work at once, and harm nothing while ingestd is away or blocked.
const { identify, init, page, reset, track } = window.ingestd
const query = new URLSearchParams(location.search)

/** An element with these properties and children. Texts are never read as HTML. */
function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties)
  made.append(...children)
  return made
}

const link = (text, href, properties) => element('a', { href, ...properties }, text)
const button = (text, onclick) => element('button', { type: 'button', onclick }, text)

function picture(product_id) {
  const [svg, use] = ['svg', 'use'].map((name) => document.createElementNS('http://www.w3.org/2000/svg', name))
  use.setAttribute('href', `#${product_id}`)
  svg.setAttribute('aria-hidden', 'true')
  svg.append(use)
  return element('span', { className: `picture ${product_id}` }, svg)
}

function show(title, ...parts) {
  document.title = `${title} – Demo shop`
  document.getElementById('content').replaceChildren(element('h1', {}, title), ...parts)
}

/** Sends the events of a page that is shown. */
function opened(name, data) {
  page()
  if (name) track(name, data)
}

// The pages

function showList() {
  const cards = PRODUCTS.map((product) => {
    const { product_id, name, price } = product
    const clicked = () => track('Product Clicked', dataOf(product))
    const card = link('', `/?page=product&id=${product_id}`, { className: 'card', onclick: clicked })
    card.append(picture(product_id), element('span', { className: 'name' }, name), element('span', { className: 'price' }, money(price)))
    return element('li', {}, card)
  })
  show('Kitchen', element('p', { className: 'lead' }, 'Six things for slow mornings. Delivered free from €50.'), element('ul', { className: 'cards' }, ...cards))
  opened('Product List Viewed', { list_id: 'kitchen', category: 'Kitchen', products: PRODUCTS.map(dataOf) })
}

function showProduct() {
  const product = PRODUCTS.find((each) => each.product_id === query.get('id')) ?? PRODUCTS[0]
  const { product_id, name, price, text } = product
  const told = element('p', { className: 'told', role: 'status' })
  const put = () => {
    change(dataOf(product), quantityOf(product_id) + 1)
    told.replaceChildren(`${quantityOf(product_id)} in your cart. `, link('To the cart', '/?page=cart'))
  }
  const buy = element('div', { className: 'buy' }, element('p', { className: 'price' }, money(price)), element('p', {}, text), button('Put into the cart', put), told)
  show(name, element('div', { className: 'product' }, picture(product_id), buy))
  opened('Product Viewed', dataOf(product))
}

/** Changes how many of a product are in the cart, and tells ingestd the difference. */
function change(product, quantity) {
  const added = Math.min(quantity, MOST) - quantityOf(product.product_id)
  setQuantity(product.product_id, quantity)
  if (added) track(added > 0 ? 'Product Added' : 'Product Removed', { ...product, quantity: Math.abs(added) })
  showLinks()
}

function showCart() {
  opened('Cart Viewed', { products: lines() })
  if (!lines().length) {
    showEmptyCart()
    return
  }
  const totals = element('dl', { className: 'sums' })
  const buy = element('button', {})
  const sum = (name, amount) => element('div', {}, element('dt', {}, name), element('dd', {}, amount ? money(amount) : 'free'))
  const update = () => {
    const { revenue, shipping, total } = sums()
    totals.replaceChildren(sum('Products', revenue), sum('Delivery', shipping), sum('Total', total))
    buy.textContent = `Order for ${money(total)}`
    if (!lines().length) showEmptyCart()
  }
  show('Cart', element('ul', { className: 'lines' }, ...lines().map((line) => lineOf(line, update))), totals, checkout(buy))
  update()
}

function showEmptyCart() {
  show('Cart', element('p', {}, 'The cart is empty.'), element('p', {}, link('Look around', '/')))
}

function lineOf({ quantity, ...product }, changed) {
  const { product_id, name, price } = product
  const amount = element('span', { className: 'price' }, money(price * quantity))
  const box = element('input', { type: 'number', min: 0, max: MOST, value: quantity, ariaLabel: `Quantity of ${name}` })
  const line = element('li', {}, picture(product_id), link(name, `/?page=product&id=${product_id}`), box, amount)
  box.addEventListener('change', () => {
    change(product, Math.max(0, Math.trunc(box.valueAsNumber) || 0))
    box.value = quantityOf(product_id)
    amount.textContent = money(price * quantityOf(product_id))
    if (!quantityOf(product_id)) line.remove()
    changed()
  })
  return line
}

function checkout(buy) {
  const field = (title, properties) => element('label', {}, title, element('input', { required: true, ...properties }))
  const email = field('E-mail', { type: 'email', value: 'ada@shop.example', autocomplete: 'email' })
  const form = element(
    'form',
    { className: 'checkout', onsubmit: (event) => order(event, email.lastChild.value) },
    element('h2', {}, 'Checkout'),
    field('Name', { value: 'Ada Example', autocomplete: 'name' }),
    email,
    buy,
    element('p', { className: 'small' }, 'A demo: nobody pays, and nothing is delivered.'),
  )
  const started = () => track('Checkout Started', { value: sums().total, currency: CURRENCY, products: lines() })
  form.addEventListener('focusin', started, { once: true })
  return form
}

function order(event, email) {
  event.preventDefault()
  if (!lines().length) {
    showEmptyCart() // a second click, or another tab has ordered
    return
  }
  const order_id = `demo-${Date.now()}`
  identify({ email })
  track('Order Completed', { order_id, ...sums(), currency: CURRENCY, products: lines() })
  empty()
  location.href = `/?page=thanks&order=${order_id}`
}

function showThanks() {
  const order = query.get('order')
  if (!order) {
    showList()
    return
  }
  const journey = `${operators}#journey?${new URLSearchParams({ order })}`
  show(
    'Thank you',
    element('p', { className: 'lead' }, 'Your order is ', element('strong', {}, order), '.'),
    ...(decision() === 'no'
      ? [element('p', {}, 'You have said no to tracking, so ingestd knows nothing of it.')]
      : [
          element('p', {}, link('See how this order came about', journey, { className: 'action' })),
          element('p', {}, 'In a terminal: ', element('code', {}, `ingestd attribution show ${order}`)),
        ]),
    element('p', {}, link('Look around', '/')),
  )
  opened()
}

// The head of every page

/** Replaces the children of an element. The focus stays in its place. */
function replace(host, ...children) {
  const place = [...host.children].indexOf(document.activeElement)
  host.replaceChildren(...children)
  if (place >= 0) host.children[Math.min(place, children.length - 1)].focus()
}

function showLinks() {
  const user = storage.getItem('shop.user')
  const signIn = () => {
    storage.setItem('shop.user', 'u-demo')
    identify('u-demo', { plan: 'gold' })
    track('Signed In')
    showLinks()
  }
  const signOut = () => {
    storage.removeItem('shop.user')
    track('Signed Out')
    reset()
    showLinks()
  }
  const sign = user ? button('Sign out', signOut) : button('Sign in', signIn)
  replace(document.getElementById('links'), link(`Cart (${pieces()})`, '/?page=cart'), sign)
}

const STATES = { yes: 'Tracking is on: you have agreed.', no: 'Tracking is off: you have said no.' }

function showConsent() {
  document.getElementById('state').className = decision() ?? ''
  document.getElementById('state').textContent = STATES[decision()] ?? 'Tracking is on, unless you say no.'
  const choose = (text, yes) => button(text, () => (decide(yes), showConsent()))
  const choices = [decision() !== 'yes' && choose('Allow tracking', true), decision() !== 'no' && choose('No tracking', false)]
  replace(document.getElementById('choices'), ...choices.filter(Boolean))
}

function showHead() {
  showLinks()
  showConsent()
}

showAnswers()
tellDecision()
init({ host, key, debug: true })
// After the page: the browser would show it as loading as long as ingestd does not answer.
const client = { type: 'module', src: `${host}/api/v1/analytics/client.js` }
addEventListener('load', () => document.head.append(element('script', client)))
document.getElementById('live').href = `${operators}#events`
showHead()
addEventListener('storage', showHead) // another tab has changed the cart or the decision
addEventListener('pageshow', showHead) // so has a later page, from which the visitor comes back
const showPage = { product: showProduct, cart: showCart, thanks: showThanks }[query.get('page')] ?? showList
showPage()
