"""What the tests of the browser client share: events that a page sends, and the records that arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .clients import wait_until
from .daemon import Shop
from .shop_pages import Site
from .tab import AnyTab

__all__ = ["KEPT", "NOTHING_WAITS", "MakeSite", "arrived", "click", "dropped", "numbers"]

KEPT = "Object.keys(localStorage).filter((name) => name.startsWith('ingestd')).concat(document.cookie || [])"
NOTHING_WAITS = "Object.keys(localStorage).every((name) => !name.startsWith('ingestd.q'))"

MakeSite = Callable[..., Site]
"""Makes the site of a test, with options of `init`."""


def arrived(shop: Shop, site: Site, key: str = "") -> list[dict[str, Any]]:
    """The records of the site, without those of other keys."""
    return [record for record in shop.stored(site.name) if not key or record.get("key") == key]


def numbers(shop: Shop, site: Site) -> list[int]:
    return [record["data"]["number"] for record in arrived(shop, site, "Product Clicked")]


def click(tab: AnyTab, *given: int) -> None:
    for number in given:
        tab.evaluate(f"ingestd.track('Product Clicked', {{ number: {number} }})")


def dropped(shop: Shop, site: Site, tab: AnyTab, number: int) -> dict[str, int] | None:
    """What the client tells of its losses with the event of this number, which it sends now."""
    tab.wait_for(NOTHING_WAITS)
    click(tab, number)
    wait_until(lambda: number in numbers(shop, site))
    (record,) = [each for each in arrived(shop, site, "Product Clicked") if each["data"]["number"] == number]
    lost: dict[str, int] | None = record["context"]["library"].get("dropped")
    return lost
