"""Events of a shop: the bodies that a benchmark's visitors send."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

__all__ = ["VISITORS", "bodies", "products", "usual"]

VISITORS = 1000


def products(visitor: int, count: int) -> list[dict[str, Any]]:
    return [
        {"product_id": f"p-{visitor}-{n}", "sku": f"SKU-{1000 + n}", "name": f"Linen shirt no. {n}", "position": n,
         "category": "Clothing/Shirts", "url": f"https://shop.example/products/linen-shirt-{n}", "price": 39.9 + n,
         "image_url": f"https://img.shop.example/p/{visitor}/{n}.jpg", "quantity": 1 + n % 3}
        for n in range(count)
    ]  # fmt: skip


def bodies() -> Iterator[dict[str, Any]]:
    campaign = {"source": "newsletter", "medium": "email", "name": "autumn-sale"}
    for visitor in range(VISITORS):
        page = {"url": f"https://shop.example/c/shirts?page={visitor}&utm_source=newsletter", "title": "Linen shirts",
                "referrer": "https://www.search.example/?q=linen+shirts"}  # fmt: skip
        agent = {"userAgent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "locale": "de",
                 "timezone": "Europe/Berlin", "screen": {"width": 1920, "height": 1080, "density": 1},
                 "library": {"name": "shop.js", "version": "1.2.3"}}  # fmt: skip
        common = {"anonymousId": f"visitor-{visitor:08d}", "context": {"page": page, "campaign": campaign, **agent}}
        product = {**products(visitor, 1)[0], "currency": "EUR", "brand": "Example & Daughters"}
        order = {"order_id": f"o-{visitor}", "total": 247.5, "revenue": 210.0, "shipping": 4.9, "tax": 37.5,
                 "discount": 0, "coupon": "AUTUMN", "currency": "EUR", "products": products(visitor, 5)}  # fmt: skip
        yield {"key": "Page View", "data": {"title": "Linen shirts"}, **common}
        yield {"key": "Product Viewed", "data": product, **common}
        yield {"key": "Order Completed", "data": order, **common}


def usual() -> Iterator[dict[str, Any]]:
    """Events as a shop sends them: one in ten keeps its campaign, and most orders become carts."""
    for number, each in enumerate(bodies()):
        body = copy.deepcopy(each)
        if number % 10:
            del body["context"]["campaign"]
            body["context"]["page"]["url"] = body["context"]["page"]["url"].replace("utm_source", "sort")
        if body["key"] == "Order Completed" and number % 50 > 2:
            body |= {"key": "Cart Viewed", "data": {"products": body["data"]["products"]}}
        yield body
