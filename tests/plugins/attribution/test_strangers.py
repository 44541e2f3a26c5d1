"""Requests with a public key, through the complete pipeline, do not change the attribution of signed orders."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pluggy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api import hookimpl, hookspecs
from ingestd.api.backend import Backend
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.api.times import format_time
from ingestd.config import HttpOptions
from ingestd.hooks.caller import Hooks
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.handler import Pipeline
from ingestd.pipeline.outcomes import Answer, Outcomes
from ingestd.pipeline.processor import Processors
from ingestd.plugins.identity import IdentityPlugin
from ingestd.plugins.session import SessionPlugin
from ingestd.scheduling.room import Backpressure
from ingestd.validation.validator import Validator
from tests.plugins.attribution.test_redis import on_redis, opener
from tests.support.attribution import START, OpenBackend, attributing
from tests.support.attribution_reference import HOUR, Rules
from tests.support.backends import PluginDaemon, sqlite_backend
from tests.support.examples import examples
from tests.support.redis_server import redis_server

LONG_AFTER = START + 1000 * 24 * HOUR
CONFLICTS = pytest.mark.logs("sent again with another value", "is in another currency", "came before its order")
ORDERS = ["Order Completed", "Order Refunded", "Order Cancelled"]
SESSIONS = {"a": str(UUID(int=1)), "b": str(UUID(int=2))}
"""The shop's visitors and their sessions. Strangers may name these too."""

Links = Literal["any", "signed"]


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def open_backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBackend]:
    if request.param == "sqlite":
        yield sqlite_backend
        return
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield opener(server, on_redis)


# Requests


class Sent(NamedTuple):
    """A request, `pause` milliseconds after the previous one. Without a `key` it is an identify request."""

    stranger: bool
    key: str | None
    visitor: str
    user: str | None = None
    data: dict[str, Any] = {}  # noqa: RUF012 - never changed
    source: str | None = None
    message: str | None = None
    session: str | None = None
    age: int = 0
    pause: int = 0
    signed: bool = False
    batch: bool = False


ITEMS = st.lists(st.fixed_dictionaries({"price": st.sampled_from([5, 12.5])}), max_size=2)
DATA = st.fixed_dictionaries(
    {"order_id": st.sampled_from(["o-1", "o-1", "o-2", "o-3"])},
    optional={
        "revenue": st.sampled_from([40, 12.5, 1000, 0, -30, 1e300]),
        "total": st.sampled_from([50, 33.33]),
        "refund_id": st.sampled_from(["r-1", "r-2"]),
        "currency": st.sampled_from(["EUR", "eur", "CZK"]),
        "products": ITEMS,
    },
)
USERS = st.sampled_from([None, "u", "u", "v", "thief"])
AGES = st.sampled_from([0, 0, HOUR])
PAUSES = st.sampled_from([0, 0, 1, HOUR // 4])  # in sum less than a day
STRANGERS = st.builds(
    Sent,
    stranger=st.just(True),
    key=st.sampled_from([*ORDERS, *ORDERS, "Page View", None, None, None]),
    visitor=st.sampled_from(["thief", "another thief", "A", "a "]),
    user=USERS,
    data=DATA,
    source=st.sampled_from([None, "thief", "mail"]),
    message=st.sampled_from([None, None, "thief", "m-1", "m-2"]),
    session=st.sampled_from([None, *SESSIONS.values()]),
    age=AGES,
    pause=PAUSES,
    signed=st.just(False),
    batch=st.booleans(),
)
SHOPS = st.builds(
    Sent,
    stranger=st.just(False),
    key=st.sampled_from([*ORDERS, "Order Completed", "Page View", "Page View", None, None]),
    visitor=st.sampled_from(["a", "a", "b"]),
    user=st.sampled_from([None, "u", "u", "v"]),
    data=DATA,
    source=st.sampled_from([None, "search", "mail"]),
    message=st.sampled_from([None, None, None, "m-1", "m-2", "m-3"]),
    age=AGES,
    pause=PAUSES,
    signed=st.sampled_from([True, True, False]),
    session=st.none(),
    batch=st.just(False),
)
SENDINGS = st.lists(STRANGERS | SHOPS, max_size=30) | st.lists(STRANGERS | SHOPS, min_size=15, max_size=30)


class Callers:
    """Authenticates every request. It counts as signed on the endpoints of servers."""

    @hookimpl
    def authenticate(self, request: Request) -> Principal:
        grants = {"CRM": frozenset({"ADMIN"})}
        return Principal("shop", "key", grants, signed=not request.endpoint.is_public)


def requests(sendings: Sequence[Sent], *, with_strangers: bool) -> Iterator[Request]:
    """The requests. Those of the shop have the same ids and times with and without strangers."""
    now, known = START, set()
    for number, sent in enumerate(sendings):
        now += sent.pause
        message = sent.message
        if sent.stranger and message not in known:
            message = None if message is None else "thief"  # strangers know only ids that the shop has already sent
        elif not sent.stranger:
            known.add(message)
        if sent.stranger and not with_strangers:
            continue
        members = {
            "anonymousId": sent.visitor,
            "userId": sent.user,
            "messageId": message,
            "sessionId": SESSIONS.get(sent.visitor, sent.session),
            "timestamp": format_time(now - sent.age),
            "context": None if sent.source is None else {"campaign": {"source": sent.source}},
        }
        body: dict[str, Any] = {name: value for name, value in members.items() if value is not None}
        if sent.key is None:
            body["traits"] = {"plan": sent.visitor}
        else:
            body |= {"key": sent.key, "data": sent.data if sent.key in ORDERS else {}}
        endpoints = [Endpoint.TRACK, Endpoint.CUSTOMER_EVENTS, Endpoint.IDENTIFY, Endpoint.SERVER_IDENTIFY]
        endpoint = endpoints[sent.signed + 2 * (sent.key is None and not sent.batch)]
        if sent.batch:
            body = {"events": [body if sent.key is not None else {"type": "identify", **body}]}
        raw = json.dumps(body).encode()
        record_id = str(UUID(int=(START << 80) + (7 << 76) + (2 << 62) + number))
        yield Request(endpoint, {}, raw, received_at=now, id=record_id, batch=sent.batch)


@asynccontextmanager
async def pipeline_on(backend: Backend, links: Links) -> AsyncIterator[Pipeline]:
    """A pipeline with the lowest bounds for public links."""
    daemon = PluginDaemon(backend)
    identity = IdentityPlugin(IdentityPlugin.Options(links=links, max_links=1, max_visitors=1))
    identity.startup(daemon)
    manager = pluggy.PluginManager(hookspecs.HOOK_NAMESPACE)
    manager.add_hookspecs(hookspecs)
    for plugin in (SessionPlugin(SessionPlugin.Options()), identity, Callers()):
        manager.register(plugin, type(plugin).__name__)
    metrics, hooks = Metrics(), Hooks(manager)
    yield Pipeline(
        hooks, Validator.load(None), Processors(hooks, backend.store, backend.partitions, [Backpressure(1000)]),
        Outcomes(metrics), HttpOptions(), unusable_ids=daemon.unusable_ids,
    )  # fmt: skip
    await daemon.stop()


async def outcome(
    open_backend: OpenBackend,
    sendings: Sequence[Sent],
    rules: Rules,
    *,
    with_strangers: bool,
    links: Links = "signed",
) -> list[bytes]:
    """The attributions and reversals derived from the requests."""
    with tempfile.TemporaryDirectory() as folder:
        async with attributing(Path(folder), rules, open_backend) as attribution:
            async with pipeline_on(attribution.backend, links) as pipeline:
                for request in requests(sendings, with_strangers=with_strangers):
                    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                    await pipeline.handle(request, answered.set_result)
                    answer = await answered
                    assert answer.status == 200, answer.body
            await attribution.work_off(repeat(1000), LONG_AFTER)
            return await attribution.derived()


@CONFLICTS
@given(SENDINGS)
@examples(20)
def test_no_request_of_strangers_changes_the_attribution_of_signed_orders(
    open_backend: OpenBackend, sendings: list[Sent]
) -> None:
    rules = Rules(orders="signed")
    without = asyncio.run(outcome(open_backend, sendings, rules, with_strangers=False))
    assert asyncio.run(outcome(open_backend, sendings, rules, with_strangers=True)) == without


BUYER = [
    Sent(False, None, "a", "u", signed=True),
    Sent(False, "Page View", "a", source="mail"),
]
THIEF = [
    Sent(True, "Page View", "thief", source="thief"),
    Sent(True, None, "thief", "u"),
]
ORDER = Sent(False, "Order Completed", "b", "u", {"order_id": "o-1", "revenue": 40}, signed=True)


async def test_with_public_links_a_stranger_takes_the_credit(open_backend: OpenBackend) -> None:
    """Without links = "signed" the property does not hold. This option is made for it."""
    credited = {}
    for links in ("any", "signed"):
        [body] = await outcome(open_backend, [*BUYER, *THIEF, ORDER], Rules(), with_strangers=True, links=links)
        credited[links] = msgspec.json.decode(body)["touchpoint"]["source"]
    assert credited == {"any": "thief", "signed": "mail"}


async def test_used_up_public_links_do_not_affect_signed_links_and_orders(open_backend: OpenBackend) -> None:
    """A stranger uses up all public links of a user and of a visitor. The shop's signed links still work."""
    flood = [Sent(True, None, f"robot {number}", "u", batch=number % 2 == 0) for number in range(5)]
    flood += [Sent(True, None, "thief", f"victim {number}") for number in range(5)]
    again = [Sent(False, None, "a", user, signed=True) for user in ("v", "u", "v", "u")]
    for links in ("any", "signed"):
        [body] = await outcome(open_backend, [*flood, *BUYER, *again, ORDER], Rules(), with_strangers=True, links=links)
        assert msgspec.json.decode(body)["touchpoint"]["source"] == "mail"
