"""Single orders of a report, the newest first, with the campaigns that have a share in each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from ingestd.api.events import Record
from ingestd.api.journal import Journal

from ..attribution.campaigns import Campaign
from ..attribution.report import number
from .report import Report

__all__ = ["OrderList", "Pause", "read_latest"]

Pause = Callable[[], Awaitable[None]]
"""Lets events go first, if the work has taken long enough."""

_MOST = 10_000  # orders: they stay in memory with the answer
_PAGE = 100  # records
_FARTHEST = 50_000  # records from the end of a journal
_DERIVED = {"attribution", "attribution_reversal"}


class _Ids(msgspec.Struct, gc=False):
    """The members of an attribution that name its order."""

    id: str
    tenant: str
    decidedAt: str  # noqa: N815 - the names are the records', here and below
    orderEventId: str  # noqa: N815
    orderId: str | None = None  # noqa: N815


_decode_ids = msgspec.json.Decoder(_Ids).decode


class OrderList:
    """The orders that a report counts. `fields` is the number of its columns."""

    def __init__(self, report: Report, fields: int) -> None:
        self._report = report
        self._fields = fields
        self._ids: dict[str, _Ids] = {}

    def add(self, record: Record) -> None:
        """Note an attribution that the report counts."""
        ids = _decode_ids(record.body)
        self._ids[ids.id] = ids
        if len(self._ids) > _MOST:
            del self._ids[next(iter(self._ids))]

    def newest(self) -> list[dict[str, Any]]:
        """The orders with amounts, ids, and the fields and the share of each campaign."""
        found = []
        for each in self._report.orders():
            ids = self._ids.get(each.id)
            if ids is not None:
                found.append({
                    "at": ids.decidedAt, "tenant": ids.tenant, "order": ids.orderId, "event": ids.orderEventId,
                    "currency": each.currency, "revenue": number(each.revenue), "reversed": number(each.reversed),
                    "net": number(each.revenue - each.reversed),
                    "shares": [(self._names(campaign), float(weight)) for campaign, weight in each.shares if weight],
                })  # fmt: skip
        return sorted(found, key=lambda each: each["at"], reverse=True)

    def _names(self, campaign: Campaign) -> tuple[str | None, ...]:
        named = campaign.fields or (campaign.label,)
        return (*named, *[None] * (self._fields - len(named)))


async def read_latest(journal: Journal, count: int, pause: Pause) -> Iterable[Record]:
    """The attributions and reversals at the end of a journal, in order, until there are so many attributions."""
    extent = await journal.extent()
    end, oldest, missing = extent.last, max(extent.first - 1, extent.last - _FARTHEST), count
    found: list[Record] = []
    while end > oldest and missing > 0:
        begin = after = max(oldest, end - _PAGE)
        page: list[Record] = []
        while after < end and (records := await journal.read(after, end - after)):  # long records come in parts
            after = records[-1].position
            page += [each for each in records if each.type in _DERIVED and each.position <= end]
            await pause()
        missing -= sum(each.type == "attribution" for each in page)
        found[:0] = page
        end = begin
    return found
