"""The plugin `attribution` with a real journal: its input, and the comparison of its output with the reference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from ingestd.api.backend import Backend
from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Endpoint, Event, Record
from ingestd.api.options import Duration
from ingestd.plugins.attribution.consumer import AttributionConsumer
from ingestd.plugins.attribution.plugin import AttributionPlugin
from ingestd.support.unusable_ids import UnusableIds

from .attribution_reference import Reference, Rules
from .backends import PluginDaemon, sqlite_backend
from .journals import read_all

__all__ = ["START", "Attribution", "OpenBackend", "Shop", "agrees", "attributing"]

START = 4_000_000_000_000
"""The start time in milliseconds. It is far ahead of the real time, on which nothing may depend."""


class Shop:
    """Makes the records of events and identify requests. `now` is the time of receipt in milliseconds."""

    def __init__(self) -> None:
        self.now = START
        self._numbers = count(1)

    def event(
        self,
        key: str,
        visitor: str,
        data: dict[str, Any] | None = None,
        *,
        user: str | None = None,
        age: int = 0,
        context: dict[str, Any] | None = None,
        dispatch: str | None = None,
        tenant: str = "shop",
        signed: bool = False,
        session: int | None = None,
        is_new: bool = False,
    ) -> Record:
        """An event that happened `age` milliseconds before it is received. Without a session it begins one."""
        more = dispatch, tenant, signed, None, session, is_new
        return self._record("event", key, visitor, data or {}, user, age, context or {}, *more)

    def touch(
        self, visitor: str, source: str, *, age: int = 0, tenant: str = "shop", session: int | None = None
    ) -> Record:
        """A visit from a campaign with this source."""
        context = {"campaign": {"source": source}}
        return self.event("Page View", visitor, age=age, context=context, tenant=tenant, session=session)

    def order(
        self,
        visitor: str,
        order_id: str | None = "o-1",
        revenue: float | None = 40,
        *,
        age: int = 0,
        user: str | None = None,
        signed: bool = False,
    ) -> Record:
        return self.event("Order Completed", visitor, _order(order_id, revenue), user=user, age=age, signed=signed)

    def refund(self, order_id: str = "o-1", revenue: float | None = None, *, signed: bool = False) -> Record:
        return self.event("Order Refunded", "backend", _order(order_id, revenue), signed=signed)

    def identify(
        self,
        visitor: str,
        user: str | None,
        *,
        age: int = 0,
        context: dict[str, Any] | None = None,
        tenant: str = "shop",
        signed: bool = False,
        linked: bool | None = None,
        session: int | None = None,
        traits: dict[str, Any] | None = None,
    ) -> Record:
        """`linked` is the result of the identity plugin, or None if there is none."""
        more = None, tenant, signed, linked, session
        return self._record("identify", None, visitor, {}, user, age, context or {}, *more, traits=traits)

    def _record(
        self,
        type_: Literal["event", "identify"],
        key: str | None,
        visitor: str,
        data: dict[str, Any],
        user: str | None,
        age: int,
        context: dict[str, Any],
        dispatch: str | None,
        tenant: str,
        signed: bool,
        linked: bool | None = None,
        session: int | None = None,
        is_new: bool = False,
        traits: dict[str, Any] | None = None,
    ) -> Record:
        number = next(self._numbers)
        event = Event(
            id=f"01a1fda8-0000-7000-8000-{number:012d}",
            type=type_,
            tenant=tenant,
            endpoint=_ENDPOINTS[type_, signed],
            received_at=self.now,
            timestamp=self.now - age,
            key=key,
            data=data,
            traits=traits or {},
            anonymous_id=visitor,
            user_id=user,
            session_id=f"00000000-0000-4000-8000-{number if session is None else 10**9 + session:012d}",
            session_is_new=is_new,
            dispatch_id=dispatch,
            message_id=None,
            context=context,
            extra={},
            signed=signed,
            linked=linked,
        )
        return event.to_record()


def _order(order_id: str | None, revenue: float | None) -> dict[str, Any]:
    data = {"order_id": order_id, "revenue": revenue}
    return {name: value for name, value in data.items() if value is not None}


_ENDPOINTS = {
    ("event", False): Endpoint.TRACK,
    ("event", True): Endpoint.CUSTOMER_EVENTS,
    ("identify", False): Endpoint.IDENTIFY,
    ("identify", True): Endpoint.SERVER_IDENTIFY,
}


class Attribution(NamedTuple):
    """The started plugin with a separate file. Its consumer does not run yet."""

    backend: Backend
    consumer: Consumer
    registry: CollectorRegistry

    async def append(self, records: Sequence[Record]) -> int:
        """Append records when they are received, by their own clock; returns the position of the last."""
        return await self.backend.journal.commit(records, self.backend.store.begin(records[-1].at))

    async def work_off(self, sizes: Iterable[int], now: int) -> None:
        """Lets the consumer process all pending records in steps of these sizes. `now` is in milliseconds."""
        journal, store = self.backend.journal, self.backend.store
        cursor = await journal.acquire_cursor(self.consumer.name, self.consumer.start)
        for size in sizes:
            records = await journal.read(cursor.position, size)
            if not records:
                return
            step = Step(store.begin(now, step=True))
            await self.consumer.process(records, step)
            done = len(records) if step.done is None else step.done
            cursor = cursor._replace(position=records[done - 1].position)
            await journal.commit(step.records, step.state, cursor)
        raise AssertionError("there are not enough sizes")

    async def derived(self) -> list[bytes]:
        """The attributions and reversals in the journal."""
        records = await read_all(self.backend.journal)
        return [record.body for record in records if record.type.startswith("attribution")]

    def counted(self, name: str) -> dict[str, int]:
        """The counts above zero of `orders` or `reversals` by result, from the metrics."""
        samples = [sample for family in self.registry.collect() for sample in family.samples]
        values = [sample for sample in samples if sample.name == f"ingestd_attribution_{name}_total"]
        return {sample.labels["result"]: int(sample.value) for sample in values if sample.value}

    def amounts_ignored(self) -> int:
        return int(self.registry.get_sample_value("ingestd_attribution_amounts_ignored_total") or 0)


OpenBackend = Callable[[Path], AbstractAsyncContextManager[Backend]]
"""Opens the back end that belongs to a folder."""


@asynccontextmanager
async def attributing(
    folder: Path, rules: Rules, open_backend: OpenBackend | None = None
) -> AsyncIterator[Attribution]:
    """The plugin with these options, with the file of the folder unless `open_backend` opens another back end."""
    async with (open_backend or sqlite_backend)(folder) as backend:
        daemon = PluginDaemon(backend)
        daemon.unusable_ids = UnusableIds(rules.unusable)
        plugin = AttributionPlugin(
            AttributionPlugin.Options(
                window=Duration(rules.window / 1000),
                model=rules.model,
                half_life=Duration(rules.half_life / 1000),
                late=Duration(rules.late / 1000),
                order_memory=Duration(rules.order_memory / 1000),
                exclude_sources=rules.exclude_sources,
                exclude_mediums=rules.exclude_mediums,
                exclude_domains=rules.exclude_domains,
                orders=rules.orders,
                referrers=rules.referrers,
            ),
            most_touches=rules.max_touches,
            most_visitors=rules.max_visitors,
        )
        plugin.startup(daemon)
        consumers: list[Consumer] = []
        plugin.register_consumers(consumers.append)
        (consumer,) = consumers
        assert isinstance(consumer, AttributionConsumer)
        consumer.linger = consumer.pause = 0.0  # no events wait for a turn
        yield Attribution(backend, consumer, daemon.registry)


def agrees(found: Sequence[bytes], reference: Reference) -> None:
    """Asserts that the records equal the records of the reference."""
    orders: dict[str, str] = {}
    for body, expected in zip(map(msgspec.json.decode, found), reference.derived, strict=True):
        if body["type"] == "attribution":
            orders[body["id"]] = body["orderEventId"]
            ignored = [each["eventId"] for each in body.pop("ignored")]
            assert len(ignored) <= 20
            assert not {*ignored} & {each["eventId"] for each in body["touchpoints"]}
        else:
            body["attributionOf"] = orders[body.pop("attributionId")]
        del body["id"]
        weights = {
            model: {share["eventId"]: share["weight"] for share in shares or ()}
            for model, shares in body["credits"].items()
        }
        for model, shares in expected["credits"].items():
            if body["credits"][model] is None:  # too many for a reversal
                assert body["type"] == "attribution_reversal"
                assert len(shares) > 4  # a reversal of a public key has less room than one of a server key
                del weights[model]
                continue
            whole = dict.fromkeys(shares, 0.0) | weights.pop(model)  # a record does not contain touches without a share
            assert whole == pytest.approx(shares, abs=1e-9)
        assert not weights
        assert {**body, "credits": ..., "value": _exact(body)} == {
            **expected,
            "credits": ...,
            "value": _exact(expected),
        }


def _exact(body: dict[str, Any]) -> dict[str, Any]:
    value = {**body["value"]}
    for name in ("revenue", "total"):
        if value[name] is not None:
            value[name] = Fraction(str(value[name]))
    return value
