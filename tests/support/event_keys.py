"""The event keys and known fields of the contract with callers, written by hand independently of the schemas."""

from __future__ import annotations

from typing import Any

KEYS = [
    "Products Searched",
    "Product List Viewed",
    "Product List Filtered",
    "Promotion Viewed",
    "Promotion Clicked",
    "Product Clicked",
    "Product Viewed",
    "Product Added",
    "Product Removed",
    "Cart Viewed",
    "Checkout Started",
    "Checkout Step Viewed",
    "Checkout Step Completed",
    "Payment Info Entered",
    "Order Updated",
    "Order Completed",
    "Order Refunded",
    "Order Cancelled",
    "Coupon Entered",
    "Coupon Applied",
    "Coupon Denied",
    "Coupon Removed",
    "Product Added to Wishlist",
    "Product Removed from Wishlist",
    "Wishlist Product Added to Cart",
    "Product Shared",
    "Cart Shared",
    "Product Reviewed",
    "Page View",
    "Signed In",
    "Signed Out",
    "Account Created",
    "Account Deleted",
]

PRODUCT = "product_id sku ean name category url image_url price position"
LINES = f"products: {PRODUCT} quantity"
ORDER = f"order_id coupon currency total revenue shipping tax discount {LINES}"
COUPON = "order_id cart_id coupon_id"
STEP = "checkout_id step shipping_method payment_method"
KNOWN_FIELDS = {
    "Products Searched": "query",
    "Product List Viewed": f"list_id category products: {PRODUCT}",
    "Product List Filtered": f"list_id category products: {PRODUCT}",
    "Promotion Viewed": "promotion_id name creative position",
    "Promotion Clicked": "promotion_id name creative position",
    "Product Clicked": PRODUCT,
    "Product Viewed": PRODUCT,
    "Product Added": f"{PRODUCT} cart_id quantity",
    "Product Removed": f"{PRODUCT} cart_id quantity",
    "Cart Viewed": f"cart_id {LINES}",
    "Checkout Started": f"order_id affiliation coupon currency value revenue shipping tax discount {LINES}",
    "Checkout Step Viewed": STEP,
    "Checkout Step Completed": STEP,
    "Payment Info Entered": "checkout_id payment_method",
    "Order Updated": f"reason {ORDER}",
    "Order Completed": f"reason {ORDER}",
    "Order Refunded": f"reason {ORDER}",
    "Order Cancelled": f"reason {ORDER}",
    "Coupon Entered": COUPON,
    "Coupon Applied": f"{COUPON} coupon_name discount",
    "Coupon Denied": f"{COUPON} reason",
    "Coupon Removed": f"{COUPON} coupon_name discount",
    "Product Added to Wishlist": f"{PRODUCT} wishlist_id wishlist_name",
    "Product Removed from Wishlist": f"{PRODUCT} wishlist_id wishlist_name",
    "Wishlist Product Added to Cart": f"{PRODUCT} wishlist_id wishlist_name",
    "Product Shared": f"share_via share_message recipient {PRODUCT}",
    "Cart Shared": f"share_via share_message recipient cart_id products: {PRODUCT}",
    "Product Reviewed": "review_id review_body product_id sku rating",
}
NUMBERS = {"price", "quantity", "total", "revenue", "shipping", "tax", "discount", "value", "step", "rating"}
JSON_TYPES = {str: "string", int: "number", float: "number"}


def wanted_type(key: str, field: str) -> str:
    """The type of a known field. Only `position` has another type with other event keys."""
    if field == "position":
        return "string" if key.startswith("Promotion") else "number"
    return "number" if field in NUMBERS else "string"


def wrong_pointers(key: str, data: dict[str, Any]) -> set[str]:
    """The JSON pointers of known fields with a wrong type, found without JSON Schema."""
    own, _, inner = KNOWN_FIELDS.get(key, "").partition("products:")

    def wrong(value: dict[str, Any], names: str, pointer: str) -> set[str]:
        known = [name for name in names.split() if name in value]
        return {f"{pointer}/{name}" for name in known if JSON_TYPES.get(type(value[name])) != wanted_type(key, name)}

    pointers = wrong(data, own, "/data")
    lists = {"products": inner.strip()} if inner else {}
    if key == "Product List Filtered":
        lists |= {"filters": "type", "sorts": "type"}
    for name, names in lists.items():
        if name in data and not isinstance(data[name], list):
            pointers.add(f"/data/{name}")
            continue
        for index, item in enumerate(data.get(name, [])):
            pointer = f"/data/{name}/{index}"
            if not isinstance(item, dict):
                pointers.add(pointer)
            elif name == "products":
                pointers |= wrong(item, names, pointer)
            elif not isinstance(item.get("type", ""), str):
                pointers.add(f"{pointer}/type")
    return pointers
