// What the shop sells. The pictures are in index.html, by the ids of the products.

export const CURRENCY = 'EUR'

export const PRODUCTS = [
  { product_id: 'p-1', name: 'Stoneware mug', category: 'Kitchen/Cups', price: 12, text: 'Thrown by hand, glazed twice. Holds a large coffee and the warmth of it.' },
  { product_id: 'p-2', name: 'Gooseneck kettle', category: 'Kitchen/Kettles', price: 64.9, text: 'Brushed steel with a spout that pours as slowly as you want.' },
  { product_id: 'p-3', name: 'Linen towel', category: 'Kitchen/Textiles', price: 9.5, text: 'Washed linen that dries glasses without a trace, and itself in an hour.' },
  { product_id: 'p-4', name: 'Oak board', category: 'Kitchen/Boards', price: 34, text: 'One piece of oak, oiled. Bread keeps its crumbs on it.' },
  { product_id: 'p-5', name: 'Enamel pot', category: 'Kitchen/Pots', price: 49.9, text: 'Four litres of soup, on any stove, for the next thirty years.' },
  { product_id: 'p-6', name: 'Salad bowl', category: 'Kitchen/Bowls', price: 27.5, text: 'Wide enough to toss a salad for six without losing a leaf.' },
]

/** The members of a product that events have. */
export const dataOf = ({ product_id, name, category, price }) => ({ product_id, name, category, price })

const format = new Intl.NumberFormat('en', { style: 'currency', currency: CURRENCY })
export const money = (amount) => format.format(amount)

/** Cents are exact: 3 × 64.9 is 194.70000000000002 otherwise. */
export const rounded = (amount) => Math.round(amount * 100) / 100
