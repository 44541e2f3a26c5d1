// A shop of a few pages. The page is chosen by `page` in the query, and the cart is in localStorage.

import { host, key, operators } from '/config.js'

// The functions of the page's first script. They work at once, and harm nothing while ingestd is away or blocked.
const { consent, identify, init, page, reset, track } = window.ingestd
const client = { type: 'module', src: `${host}/api/v1/analytics/client.js` }

const PRODUCTS = [
  { product_id: 'p-1', name: 'Stoneware mug', category: 'Kitchen/Cups', price: 12 },
  { product_id: 'p-2', name: 'Gooseneck kettle', category: 'Kitchen/Kettles', price: 64.9 },
  { product_id: 'p-3', name: 'Linen towel', category: 'Kitchen/Textiles', price: 9.5 },
]
const content = document.getElementById('content')
const query = new URLSearchParams(location.search)

function cart() {
  return JSON.parse(localStorage.getItem('shop.cart') ?? '[]')
}

function saveCart(lines) {
  localStorage.setItem('shop.cart', JSON.stringify(lines))
}

function total(lines) {
  return lines.reduce((sum, { price, quantity }) => sum + price * quantity, 0)
}

/** Lists an event that is sent. */
function list(event) {
  document.getElementById('sent').append(element('li', event.key ?? 'Identify'))
  return event
}

function element(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text }, properties)
}

function link(text, href, onclick) {
  return element('a', text, { href, onclick })
}

function button(text, onclick) {
  return element('button', text, { onclick })
}

function show(title, ...parts) {
  document.title = `${title} – Demo shop`
  content.replaceChildren(element('h1', title), ...parts)
}

function showList() {
  show('Kitchen')
  for (const product of PRODUCTS) {
    const to = `/?page=product&id=${product.product_id}`
    const line = element('p', '')
    line.append(link(product.name, to, () => track('Product Clicked', product)), ` ${product.price.toFixed(2)} EUR`)
    content.append(line)
  }
  opened('Product List Viewed', { list_id: 'kitchen', category: 'Kitchen', products: PRODUCTS })
}

function showProduct() {
  const product = PRODUCTS.find((each) => each.product_id === query.get('id')) ?? PRODUCTS[0]
  const put = () => {
    const lines = cart()
    const line = lines.find((each) => each.product_id === product.product_id)
    if (line) line.quantity += 1
    else lines.push({ ...product, quantity: 1 })
    saveCart(lines)
    track('Product Added', { ...product, quantity: 1 })
    showLinks()
  }
  show(product.name, element('p', `${product.price.toFixed(2)} EUR`), button('Put into the cart', put))
  opened('Product Viewed', product)
}

function showCart() {
  const lines = cart()
  const order = () => {
    const order_id = `demo-${Date.now()}`
    const revenue = total(lines)
    track('Order Completed', { order_id, revenue, total: revenue, currency: 'EUR', products: lines })
    saveCart([])
    location.href = `/?page=thanks&order=${order_id}`
  }
  show('Cart', ...lines.map(({ name, quantity }) => element('p', `${quantity} × ${name}`)))
  if (lines.length) content.append(element('p', `${total(lines).toFixed(2)} EUR`), button('Order', order))
  else content.append(element('p', 'The cart is empty.'))
  opened('Cart Viewed', { products: lines })
}

function showThanks() {
  const order = query.get('order') ?? ''
  show(
    'Thank you',
    element('p', `Your order is ${order}.`),
    element('p', 'The table of revenue shows its campaign:'),
    link('the page for operators', operators),
    element('p', `The command with every detail: ingestd attribution show ${order}`),
  )
  opened()
}

/** Sends the events of a page that is shown. */
function opened(name, data) {
  page()
  if (name) track(name, data)
}

function showLinks() {
  const pieces = cart().reduce((sum, { quantity }) => sum + quantity, 0)
  const user = localStorage.getItem('shop.user')
  const signIn = () => {
    localStorage.setItem('shop.user', 'u-demo')
    identify('u-demo', { plan: 'gold' })
    track('Signed In')
    showLinks()
  }
  const signOut = () => {
    localStorage.removeItem('shop.user')
    track('Signed Out')
    reset()
    showLinks()
  }
  document
    .getElementById('links')
    .replaceChildren(
      link(`Cart (${pieces})`, '/?page=cart'),
      user ? button('Sign out', signOut) : button('Sign in', signIn),
      allowed ? 'Tracking is on.' : 'Tracking is off.',
      allowed ? button('No tracking', () => decide(false)) : button('Allow tracking', () => decide(true)),
    )
}

/** ingestd keeps the decision. The shop asks for it only to show it. */
let allowed = localStorage.getItem('ingestd.consent') !== 'no'

function decide(yes) {
  allowed = yes
  consent(yes)
  showLinks()
}

init({ host, key, debug: true, before_send: list })
document.head.append(element('script', '', client))
showLinks()
const showPage = { product: showProduct, cart: showCart, thanks: showThanks }[query.get('page')] ?? showList
showPage()
