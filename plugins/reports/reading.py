"""Reads what a report counts by the rules of a shop: touchpoints, visits, orders with their products, attributions."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from ingestd.api.events import Record
from ingestd.api.imported import is_completed, original_time
from ingestd.support.json_text import read_float
from ingestd.support.unusable_ids import UnusableIds

from ..attribution.amounts import EXACT, decimal, number_of
from ..attribution.arrivals import Arrivals
from ..attribution.campaigns import OTHERS
from ..attribution.reading import Seen, read
from ..attribution.touches import Touch
from ..sources import Channels
from .periods import TimeZone

__all__ = ["Customer", "ReportRules", "Visit", "page_path", "products", "read_customer", "read_visit"]

_MAX_TEXT = 256  # characters of a path or a product's name: callers choose them
_NAMES = ("name", "sku", "product_id", "ean")
_MOST = 100  # products of an order: a caller may send thousands
_SHARE = Context(prec=30)


class ReportRules(NamedTuple):
    """The rules of a shop that reports follow."""

    arrivals: Arrivals
    channels: Channels
    time_zone: TimeZone
    cost_life: int
    """How long costs are kept after their day, in milliseconds."""

    def touch_of(self, record: Record, unusable_ids: UnusableIds) -> Touch | None:
        """The touchpoint that a record of the journal is, if it counts."""
        seen = read(record, self.arrivals, unusable_ids, with_stateless=True)
        return seen.touch if isinstance(seen, Seen) and seen.excluded is None else None


class Visit(msgspec.Struct, gc=False):
    """The members of an event or identify request. The names are those of records."""

    tenant: str
    id: str
    anonymousId: str | None = None  # noqa: N815
    sessionId: str | None = None  # noqa: N815
    sessionIsNew: bool = True  # noqa: N815
    key: str | None = None
    signed: bool = False

    @property
    def is_visit(self) -> bool:
        """Whether somebody was there: a back end tells of an order perhaps days later, and may name its session."""
        if not self.signed or self.key is None or not self.key.startswith("Order "):
            return True
        return self.sessionIsNew and self.key == "Order Completed"


class Customer(msgspec.Struct, gc=False):
    """The members of an attribution that tell when which customer ordered."""

    id: str
    tenant: str
    decidedAt: str  # noqa: N815
    anonymousId: str | None = None  # noqa: N815
    userId: str | None = None  # noqa: N815
    orderAt: str | None = None  # noqa: N815

    @property
    def at(self) -> str:
        """The time of the order. Texts of this form sort by time."""
        return self.orderAt or self.decidedAt

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which the customer is known, of its tenant. None after the customer has been forgotten."""
        named = ("u", self.userId), ("v", self.anonymousId)
        return tuple(f"{self.tenant}\0{kind}{value}" for kind, value in named if value is not None)


class _Context(msgspec.Struct, gc=False):
    page: Any = None


class _Paged(msgspec.Struct, gc=False):
    context: _Context


class _Data(msgspec.Struct, gc=False):
    products: Any = None


class _Ordered(msgspec.Struct, gc=False):
    data: _Data


read_customer = msgspec.json.Decoder(Customer).decode
_decode_visit = msgspec.json.Decoder(Visit).decode
_decode_paged = msgspec.json.Decoder(_Paged, float_hook=read_float).decode
_decode_ordered = msgspec.json.Decoder(_Ordered, float_hook=read_float).decode


def read_visit(record: Record) -> tuple[int, Visit] | None:
    """The time of receipt and the members. None for a record that an import has stored again."""
    at = original_time(record.body)
    if at is not None and is_completed(record.body):
        return None
    return record.at if at is None else at, _decode_visit(record.body)


def page_path(record: Record) -> str | None:
    """The path of the page that sent an event. None if it names no page."""
    page = _decode_paged(record.body).context.page
    if not isinstance(page, dict):
        return None
    path, url = page.get("path"), page.get("url")
    if not (isinstance(path, str) and path.startswith("/")):
        if not isinstance(url, str) or not url.strip():
            return None
        try:
            path = urlsplit(url.strip()[:8192]).path
        except ValueError:  # not an address
            return None
    path = path.partition("?")[0].partition("#")[0][: 4 * _MAX_TEXT]
    return (unquote(path)[:_MAX_TEXT] or "/") if path.startswith("/") or not path else None


def products(record: Record) -> tuple[tuple[str | None, Decimal], ...]:
    """The products of an order and their shares of its worth: price times quantity, a missing quantity being 1.

    If no product has a worth, all lines have equal shares. Lines of the same product are one. Without products, None
    has all. A product is named by its `name`, else `sku`, `product_id` or `ean`. Beyond `_MOST`, the smallest are one.
    """
    lines = _decode_ordered(record.body).data.products
    lines = [each for each in lines if isinstance(each, dict)] if isinstance(lines, list) else []
    worths: dict[str | None, Decimal] = {}
    counts: dict[str | None, Decimal] = {}
    for line in lines:
        name = next((text for text in map(line.get, _NAMES) if isinstance(text, str) and text.strip()), None)
        name = None if name is None else name.strip()[:_MAX_TEXT]
        counts[name] = counts.get(name, Decimal(0)) + 1
        worths[name] = worths.get(name, Decimal(0)) + _worth(line)
    shares = worths if any(worths.values()) else counts or {None: Decimal(1)}
    total = sum(shares.values())
    if len(shares) > _MOST:
        largest = sorted(shares, key=lambda name: (-shares[name], name or ""))[: _MOST - 1]
        rest = total - sum(shares[name] for name in largest)
        shares = {name: shares[name] for name in largest}
        shares[OTHERS.label] = shares.get(OTHERS.label, Decimal(0)) + rest
    return tuple((name, _SHARE.divide(share, total)) for name, share in shares.items() if share)


def _worth(line: dict[str, Any]) -> Decimal:
    price, quantity = number_of(line.get("price")), number_of(line.get("quantity"))
    if price is None or price <= 0:
        return Decimal(0)
    quantity = 1 if quantity is None else max(0, quantity)
    return EXACT.multiply(decimal(price), decimal(quantity))
