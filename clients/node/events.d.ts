// Made from schemas/ by scripts/browser_types.py.

/** One product as a shop describes it. Nothing is required; other fields pass. */
export interface Product {
  /** The shop's identifier of the product */
  product_id?: string
  /** Stock keeping unit, usually of one variant */
  sku?: string
  /** European Article Number; text, so that leading zeros survive */
  ean?: string
  /** Name as the customer reads it */
  name?: string
  /** Category in the shop's catalogue */
  category?: string
  /** Address of the product's page */
  url?: string
  /** Address of a picture of the product */
  image_url?: string
  /** Price of one piece */
  price?: number
  /** Place in the list the product was shown in */
  position?: number
  [name: string]: unknown
}

/** A line of a cart, checkout or order: a product and how many of it. */
export interface ProductWithQuantity extends Product {
  /** Number of pieces */
  quantity?: number
  [name: string]: unknown
}

/** An order and what was bought with it. Nothing is required; other fields pass. */
export interface Order {
  /** The shop's identifier of the order */
  order_id?: string
  /** Code of the coupon that was used */
  coupon?: string
  /** Currency of the amounts, by convention an ISO 4217 code */
  currency?: string
  /** What the customer pays: revenue, shipping and tax, less discount */
  total?: number
  /** Value of the goods, without shipping and tax */
  revenue?: number
  /** Cost of shipping */
  shipping?: number
  /** Tax in the total */
  tax?: number
  /** Discount in the total */
  discount?: number
  /** The lines of the order */
  products?: ProductWithQuantity[]
  [name: string]: unknown
}

/** A banner or other promotion inside the shop. Nothing is required; other fields pass. */
export interface Promotion {
  /** The shop's identifier of the promotion */
  promotion_id?: string
  /** Name of the promotion */
  name?: string
  /** Which picture or text of the promotion was shown */
  creative?: string
  /** Where on the page it was shown */
  position?: string
  [name: string]: unknown
}

/** The data of each event, by its key. */
export interface EventData {
  /** Sent when an account is created. Any object. */
  'Account Created': Record<string, unknown>
  /** Sent when an account is deleted. Any object. */
  'Account Deleted': Record<string, unknown>
  /** Sent when a cart is shared with somebody. */
  'Cart Shared': {
    /** The way it is shared, such as email */
    share_via?: string
    /** What the visitor wrote with it */
    share_message?: string
    /** Who it is shared with */
    recipient?: string
    /** The shop's identifier of the cart */
    cart_id?: string
    /** The products in the cart */
    products?: Product[]
    [name: string]: unknown
  }
  /** Sent when the cart page is shown. */
  'Cart Viewed': {
    /** The shop's identifier of the cart */
    cart_id?: string
    /** The lines of the cart */
    products?: ProductWithQuantity[]
    [name: string]: unknown
  }
  /** Sent when a visitor enters the checkout. */
  'Checkout Started': {
    /** The shop's identifier of the order to be */
    order_id?: string
    /** The shop or partner the sale is made through */
    affiliation?: string
    /** Code of the coupon that is used */
    coupon?: string
    /** Currency of the amounts, by convention an ISO 4217 code */
    currency?: string
    /** Value of the checkout */
    value?: number
    /** Value of the goods, without shipping and tax */
    revenue?: number
    /** Cost of shipping */
    shipping?: number
    /** Tax in the value */
    tax?: number
    /** Discount in the value */
    discount?: number
    /** The lines of the checkout */
    products?: ProductWithQuantity[]
    [name: string]: unknown
  }
  /** Sent when a step of the checkout is done. */
  'Checkout Step Completed': {
    /** The shop's identifier of the checkout */
    checkout_id?: string
    /** Number of the step */
    step?: number
    /** Chosen way of shipping */
    shipping_method?: string
    /** Chosen way of payment */
    payment_method?: string
    [name: string]: unknown
  }
  /** Sent when a step of the checkout is shown. */
  'Checkout Step Viewed': {
    /** The shop's identifier of the checkout */
    checkout_id?: string
    /** Number of the step */
    step?: number
    /** Chosen way of shipping */
    shipping_method?: string
    /** Chosen way of payment */
    payment_method?: string
    [name: string]: unknown
  }
  /** Sent when a coupon is accepted. */
  'Coupon Applied': {
    /** The shop's identifier of the order */
    order_id?: string
    /** The shop's identifier of the cart */
    cart_id?: string
    /** The code, or the shop's identifier of the coupon */
    coupon_id?: string
    /** Name of the coupon */
    coupon_name?: string
    /** What the coupon takes off the price */
    discount?: number
    [name: string]: unknown
  }
  /** Sent when a coupon is invalid or not applicable. */
  'Coupon Denied': {
    /** The shop's identifier of the order */
    order_id?: string
    /** The shop's identifier of the cart */
    cart_id?: string
    /** The code, or the shop's identifier of the coupon */
    coupon_id?: string
    /** Why the coupon was denied */
    reason?: string
    [name: string]: unknown
  }
  /** Sent when a visitor types a coupon's code. */
  'Coupon Entered': {
    /** The shop's identifier of the order */
    order_id?: string
    /** The shop's identifier of the cart */
    cart_id?: string
    /** The code, or the shop's identifier of the coupon */
    coupon_id?: string
    [name: string]: unknown
  }
  /** Sent when a coupon is removed from the cart or order. */
  'Coupon Removed': {
    /** The shop's identifier of the order */
    order_id?: string
    /** The shop's identifier of the cart */
    cart_id?: string
    /** The code, or the shop's identifier of the coupon */
    coupon_id?: string
    /** Name of the coupon */
    coupon_name?: string
    /** What the coupon takes off the price */
    discount?: number
    [name: string]: unknown
  }
  /** Sent when an order is cancelled. */
  'Order Cancelled': Order & {
    /** Why the order was cancelled */
    reason?: string
    [name: string]: unknown
  }
  /** Sent when an order is finalised. Attribution starts from it. */
  'Order Completed': Order & {
    /** A remark on the order */
    reason?: string
    [name: string]: unknown
  }
  /** Sent when an order is refunded, whole or in part. */
  'Order Refunded': Order & {
    /** Why the order was refunded */
    reason?: string
    [name: string]: unknown
  }
  /** Sent when an order is changed before its confirmation. */
  'Order Updated': Order & {
    /** Why the order was changed */
    reason?: string
    [name: string]: unknown
  }
  /** Sent when any page is shown. Any object. */
  'Page View': Record<string, unknown>
  /** Sent when a visitor has given the payment data. */
  'Payment Info Entered': {
    /** The shop's identifier of the checkout */
    checkout_id?: string
    /** Chosen way of payment */
    payment_method?: string
    [name: string]: unknown
  }
  /** Sent when a product is added to the cart. */
  'Product Added': Product & {
    /** The shop's identifier of the cart */
    cart_id?: string
    /** Number of pieces added */
    quantity?: number
    [name: string]: unknown
  }
  /** Sent when a product is put on a wishlist. */
  'Product Added to Wishlist': Product & {
    /** The shop's identifier of the wishlist */
    wishlist_id?: string
    /** Name of the wishlist */
    wishlist_name?: string
    [name: string]: unknown
  }
  /** Sent when a product is clicked in a list. */
  'Product Clicked': Product
  /** Sent when a list of products is filtered or sorted. */
  'Product List Filtered': {
    /** The shop's identifier of the list */
    list_id?: string
    /** Category the list shows */
    category?: string
    /** The products in the list */
    products?: Product[]
    /** The filters in force */
    filters?: Array<{
      /** What is filtered by, such as price */
      type?: string
      /** The value that passes the filter, of any type */
      value?: unknown
      [name: string]: unknown
    }>
    /** The sort orders in force */
    sorts?: Array<{
      /** What is sorted by, such as price */
      type?: string
      /** The direction or other value, of any type */
      value?: unknown
      [name: string]: unknown
    }>
    [name: string]: unknown
  }
  /** Sent when a list of products is shown. */
  'Product List Viewed': {
    /** The shop's identifier of the list */
    list_id?: string
    /** Category the list shows */
    category?: string
    /** The products in the list */
    products?: Product[]
    [name: string]: unknown
  }
  /** Sent when a product is removed from the cart. */
  'Product Removed': Product & {
    /** The shop's identifier of the cart */
    cart_id?: string
    /** Number of pieces removed */
    quantity?: number
    [name: string]: unknown
  }
  /** Sent when a product is taken off a wishlist. */
  'Product Removed from Wishlist': Product & {
    /** The shop's identifier of the wishlist */
    wishlist_id?: string
    /** Name of the wishlist */
    wishlist_name?: string
    [name: string]: unknown
  }
  /** Sent when a product is reviewed. */
  'Product Reviewed': {
    /** The shop's identifier of the review */
    review_id?: string
    /** Text of the review */
    review_body?: string
    /** The shop's identifier of the product */
    product_id?: string
    /** Stock keeping unit of the product */
    sku?: string
    /** Rating given */
    rating?: number
    [name: string]: unknown
  }
  /** Sent when a product is shared with somebody. */
  'Product Shared': Product & {
    /** The way it is shared, such as email */
    share_via?: string
    /** What the visitor wrote with it */
    share_message?: string
    /** Who it is shared with */
    recipient?: string
    [name: string]: unknown
  }
  /** Sent when the page of a product is shown. */
  'Product Viewed': Product
  /** Sent when a visitor runs a search. */
  'Products Searched': {
    /** What was searched for */
    query?: string
    [name: string]: unknown
  }
  /** Sent when a banner or other promotion is clicked. */
  'Promotion Clicked': Promotion
  /** Sent when a banner or other promotion is shown. */
  'Promotion Viewed': Promotion
  /** Sent when a user signs in. Any object. */
  'Signed In': Record<string, unknown>
  /** Sent when a user signs out. Any object. */
  'Signed Out': Record<string, unknown>
  /** Sent when a product is moved from a wishlist to the cart. */
  'Wishlist Product Added to Cart': Product & {
    /** The shop's identifier of the wishlist */
    wishlist_id?: string
    /** Name of the wishlist */
    wishlist_name?: string
    [name: string]: unknown
  }
}
