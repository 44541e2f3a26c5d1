"""The event that the name of a `track` call means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["EventNames"]

# The names of the first version of Segment's e-commerce specification. Folding finds the others: `Completed Order` and
# `completed_order` are the same name.
_OLD_NAMES = {
    "Added Product": "Product Added",
    "Added Product to Wishlist": "Product Added to Wishlist",
    "Added Wishlist Product to Cart": "Wishlist Product Added to Cart",
    "Applied Coupon": "Coupon Applied",
    "Cancelled Order": "Order Cancelled",
    "Clicked Product": "Product Clicked",
    "Clicked Promotion": "Promotion Clicked",
    "Completed Checkout Step": "Checkout Step Completed",
    "Completed Order": "Order Completed",
    "Denied Coupon": "Coupon Denied",
    "Entered Coupon": "Coupon Entered",
    "Entered Payment Info": "Payment Info Entered",
    "Filtered Product List": "Product List Filtered",
    "Refunded Order": "Order Refunded",
    "Removed Coupon": "Coupon Removed",
    "Removed Product": "Product Removed",
    "Removed Product from Wishlist": "Product Removed from Wishlist",
    "Reviewed Product": "Product Reviewed",
    "Searched Products": "Products Searched",
    "Shared Cart": "Cart Shared",
    "Shared Product": "Product Shared",
    "Started Checkout": "Checkout Started",
    "Updated Order": "Order Updated",
    "Viewed Cart": "Cart Viewed",
    "Viewed Checkout Step": "Checkout Step Viewed",
    "Viewed Product": "Product Viewed",
    "Viewed Product Category": "Product List Viewed",
    "Viewed Product List": "Product List Viewed",
    "Viewed Promotion": "Promotion Viewed",
}

_LONGEST = 1_000  # characters of a name that may be known: folding takes time
_SEPARATORS = str.maketrans("", "", " _-")


class EventNames:
    """Finds the key of an event by its name. The names of a shop come first, then the keys, then the old names."""

    def __init__(self, keys: Iterable[str], names: Mapping[str, str]) -> None:
        keys = sorted(keys)
        self._exact = {**{key: key for key in keys}, **names}
        self._folded = {_fold(old): key for old, key in _OLD_NAMES.items() if key in self._exact}
        folded = [_fold(key) for key in keys]
        # A shop may have keys that differ in case only. Such a name means the key that it equals.
        self._folded |= {name: key for name, key in zip(folded, keys, strict=True) if folded.count(name) == 1}
        self._folded |= {_fold(name): key for name, key in names.items()}

    def find(self, name: str) -> str | None:
        if len(name) > _LONGEST:
            return None
        return self._exact.get(name) or self._folded.get(_fold(name))


def _fold(name: str) -> str:
    return name.lower().translate(_SEPARATORS)
