"""The command `ingestd attribution show`: the journey of an order."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.errors import CommandError
from ingestd.api.hookspecs import Commands, Daemon
from ingestd.api.journal import Journal
from ingestd.api.output import write, write_json
from ingestd.api.store import Store
from ingestd.support.terminal import printable

from ..reports.journals import pages
from ..sources import Channels
from .amounts import worth
from .explanation import explain_order, ignored, money, text_lines, waiting
from .marks import TENANTS, DecidedOrder, Marks
from .record_size import recorded_id
from .untrusted import Untrusted, find_untrusted
from .waiting import find_waiting

__all__ = ["register"]

_PAGE = 500


def register(commands: Commands, channels: Channels) -> None:
    async def run_show(arguments: Namespace, daemon: Daemon) -> None:
        await show(arguments, daemon, channels)

    commands.describe("attribution", "show how orders are attributed to campaigns")
    parser = commands.add(
        "attribution",
        "show",
        run_show,
        help="show the journey of an order, with the campaigns that get credit for it",
        examples=["ingestd attribution show o-1001", "ingestd attribution show o-1001 --tenant shop --json"],
        json="print the records as JSON lines",
    )
    parser.add_argument(
        "order_id", metavar="ORDER_ID", help="the order's id; for an order without one, the id of its event"
    )
    parser.add_argument(
        "--tenant", metavar="TENANT", help="only this shop; needed if several shops have an order with this id"
    )


async def show(arguments: Namespace, daemon: Daemon, channels: Channels) -> None:
    order_id, tenant = arguments.order_id, arguments.tenant
    partitions = _partitions(tenant, daemon)
    missing = MissingPartitions(partitions)
    marks: dict[str, DecidedOrder] = {}
    for partition in partitions:
        with missing.tolerating(partition):
            known = Marks(partition.store.begin(times.now()), 0)
            marks |= await known.of_order_id(order_id, await _tenants(tenant, partition.store))
    _only_one({*marks})
    owner, mark = next(iter(marks.items()), (tenant, None))
    found: list[dict[str, Any]] = []
    places = _partitions(owner, daemon)
    for partition in places:
        with missing.tolerating(partition):
            # The position in a mark is of one journal, and a tenant that was moved has records in several.
            found += await _records(order_id, tenant, mark if len(places) == 1 else None, partition.journal)
    if len(places) > 1:
        found.sort(key=lambda body: str(body.get("decidedAt")))
    _only_one({body["tenant"] for body in found})
    # An attribution comes before its reversals, so retention may have removed the attribution only.
    if mark is None and not found:
        missing.check(f"the order {order_id!r} was not found, but may be there")
        raise CommandError(await _undecided(order_id, tenant, partitions))
    if mark is not None and mark.attribution_id not in [body["id"] for body in found]:
        raise CommandError(_removed(order_id, mark))
    while found and found[0]["type"] != "attribution":  # reversals of a superseded order
        del found[0]
    if arguments.json:
        write_json(*found)
    else:
        for body in found:
            if body["type"] == "attribution":
                reversals = [each for each in found if each.get("attributionId") == body["id"]]
                write(text_lines(explain_order(body, reversals, channels)))
        untrusted = await _untrusted(order_id, tenant, _partitions(found[0]["tenant"], daemon))
        write(f"  {printable(ignored(each))}" for each in untrusted)
    missing.check("another shop may have an order with this id too")


def _partitions(tenant: str | None, daemon: Daemon) -> Sequence[Partition]:
    """The partitions with the records of a tenant, or of all tenants."""
    return daemon.partitions if tenant is None else daemon.all_of_tenant(tenant)


def _only_one(tenants: set[str]) -> None:
    if len(tenants) > 1:
        raise CommandError(f"several shops have this order, {', '.join(sorted(tenants))}: choose one with --tenant")


async def _tenants(tenant: str | None, store: Store) -> list[str]:
    return [tenant] if tenant is not None else [name async for _, name in store.scan(TENANTS)]


async def _records(
    order_id: str, tenant: str | None, mark: DecidedOrder | None, journal: Journal
) -> list[dict[str, Any]]:
    """The attributions and reversals of the order. With a mark, the search ends with the last one that it counts."""
    found: list[dict[str, Any]] = []
    async for records in pages(journal, 0 if mark is None else mark.first, _PAGE):
        for record in records:
            if record.type in {"attribution", "attribution_reversal"}:
                body = record.decode()
                if _is_of(body, order_id) and tenant in {None, body["tenant"]}:
                    found.append(body)
                    if mark is not None and len(found) == mark.derived:
                        return found
    return found


def _is_of(body: dict[str, Any], order_id: str) -> bool:
    return bool(
        body["orderId"] == recorded_id(order_id) or (body["orderId"] is None and body.get("orderEventId") == order_id)
    )


async def _undecided(order_id: str, tenant: str | None, partitions: Sequence[Partition]) -> str:
    text = f"the order {order_id!r} is not attributed: it has not been sent, or attribution has not read it yet"
    for partition in partitions:
        state = partition.store.begin(times.now())
        for name in await _tenants(tenant, partition.store):
            for refund in await find_waiting(state, name, order_id):
                text += f"; {printable(waiting(name, refund))}"  # callers choose the currency
    for each in await _untrusted(order_id, tenant, partitions):
        text += f"; {ignored(each)}"
    return text


async def _untrusted(order_id: str, tenant: str | None, partitions: Sequence[Partition]) -> list[Untrusted]:
    """Records of the order that were ignored because a public key sent them."""
    found = []
    for partition in partitions:
        state = partition.store.begin(times.now())
        for name in await _tenants(tenant, partition.store):
            found += await find_untrusted(state, name, order_id)
    return found


def _removed(order_id: str, mark: DecidedOrder) -> str:
    amount = printable(money(worth(mark.revenue, mark.total), mark.currency))  # callers choose the currency
    return (
        f"the attribution of the order {order_id!r} has been removed from the journal. ingestd still remembers:"
        f" received {times.format_time(mark.at)}, {amount}, {mark.reversed} of it reversed,"
        f" {len(mark.touches)} touchpoints, the last one {_age(mark)} before it"
    )


def _age(mark: DecidedOrder) -> str:
    return str(timedelta(seconds=mark.touches[-1][1] // 1000)) if mark.touches else "-"
