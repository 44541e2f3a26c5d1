"""Transactions of events on Redis: serial, all or nothing, and never endless."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.api.errors import DuplicateMessage, Failed, Unavailable, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.api.store import Field, State
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.testing.backends import append_each
from tests.support.examples import examples
from tests.support.journals import read_all
from tests.support.redis_proxy import RedisProxy, redis_proxy
from tests.support.redis_server import RedisServer, redis_server
from tests.support.state_model import Model

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
CANNOT = "ingestd.redis WARNING events cannot be stored: "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@asynccontextmanager
async def opened(url: str, prefix: str, *, patience: float = 5.0) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(make_pool(url, (), timeout=2), prefix=prefix, timeout=2, patience=patience)
    await backend.open(serving=False)
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def two_daemons(server: RedisServer) -> AsyncIterator[tuple[RedisBackend, RedisBackend]]:
    """Their back ends, on one store."""
    prefix = f"{uuid4()}:"
    async with opened(server.url, prefix) as here, opened(server.url, prefix) as there:
        yield here, there


def begin(backend: RedisBackend, now: int = NOW) -> State:
    return backend.store.begin(now, event=True)


async def store(backend: RedisBackend, state: State, text: str = "x") -> Exception | None:
    (error,) = await append_each(backend.journal, [Append(state, Record("event", NOW, text.encode()))])
    return error


# Conflicts


Change = Callable[[State], Any]
READS: dict[str, tuple[Change, Change]] = {
    "value": (lambda state: state.get("k:1"), lambda state: state.put("k:1", "new")),
    "absent value": (lambda state: state.get("k:2"), lambda state: state.put("k:2", "new")),
    "deleted value": (lambda state: state.get("k:1"), lambda state: state.delete("k:1")),
    "replaced value": (lambda state: state.put("k:1", "x"), lambda state: state.put("k:1", "new")),
    "failed swap": (lambda state: state.swap("k:1", "y", "x"), lambda state: state.put("k:1", "y")),
    "renewed value": (lambda state: state.renew("k:1", "x", 9), lambda state: state.put("k:1", "new")),
    "created value": (lambda state: state.renew("k:2", "x", 9), lambda state: state.renew("k:2", "y", 9)),
    "fields": (lambda state: state.fields("f:1"), lambda state: state.merge("f:1", {"a": Field(2, "new")})),
    "absent fields": (lambda state: state.fields("f:2"), lambda state: state.merge("f:2", {"a": Field(2, "new")})),
    "members": (lambda state: state.window("s:1"), lambda state: state.push("s:1", "new", 2, keep=9)),
    "removed member": (lambda state: state.window("s:1"), lambda state: state.pull("s:1", ["old"])),
    "absent members": (lambda state: state.window("s:2"), lambda state: state.push("s:2", "new", 2, keep=9)),
}


async def prepare(backend: RedisBackend) -> None:
    state = backend.store.begin(NOW)
    await state.put("k:1", "old")
    await state.merge("f:1", {"a": Field(1, "old")})
    await state.push("s:1", "old", 1, keep=9)
    await backend.store.commit(state)


@pytest.mark.parametrize("is_event", [True, False], ids=["event", "command"])
@pytest.mark.parametrize("name", READS)
async def test_what_was_read_has_changed_at_another_daemon_so_nothing_is_written(
    server: RedisServer, name: str, *, is_event: bool
) -> None:
    async with two_daemons(server) as (here, there):
        read, change = READS[name]
        await prepare(here)
        state = here.store.begin(NOW, event=is_event)
        await read(state)
        await state.put("k:other", "written")
        called: list[bool] = []
        state.on_commit(lambda: called.append(True))
        other = begin(there)
        await change(other)
        assert await store(there, other) is None
        if is_event:
            assert isinstance(await store(here, state), WriteConflict)
        else:
            with pytest.raises(WriteConflict):
                await here.journal.commit([Record("event", NOW, b"x")], state)
        assert len(await read_all(here.journal)) == 1
        assert await there.store.begin(NOW).get("k:other") is None
        again = here.store.begin(NOW, event=is_event)  # it reads what there is now
        await read(again)
        again.on_commit(lambda: called.append(True))
        await here.store.commit(again)
        assert called == [True]


async def test_a_renewal_of_what_another_transaction_has_not_stored_yet_is_a_renewal_of_what_is_stored(
    server: RedisServer,
) -> None:
    async with two_daemons(server) as (here, there):
        state = begin(here)
        await state.put("k:1", "x", 2)
        assert await store(here, state) is None
        later = begin(here, NOW + 3)  # for it the entry has ended
        assert await later.put("k:1", "x", 2) is None
        renewing = begin(here)
        assert await renewing.renew("k:1", "y", 5) == ("x", False)
        assert await store(here, renewing) is None
        assert isinstance(await store(here, later), WriteConflict)
        assert await there.store.begin(NOW + 5).get("k:1") == "x"


async def test_blind_writes_of_two_daemons_do_not_conflict(server: RedisServer) -> None:
    async with two_daemons(server) as pair:
        states = [begin(backend) for backend in pair]
        for number, state in enumerate(states):
            await state.merge("f:1", {f"{number}": Field(number, "x")})
            await state.push("s:1", f"{number}", number, keep=9)
        for backend, state in zip(pair, states, strict=True):
            assert await store(backend, state) is None
        reader = pair[0].store.begin(NOW)
        assert await reader.fields("f:1") == {"0": Field(0, "x"), "1": Field(1, "x")}
        assert await reader.window("s:1") == [("0", 0), ("1", 1)]


async def test_a_renewal_neither_conflicts_with_another_nor_shortens_a_life(
    server: RedisServer,
) -> None:
    async with two_daemons(server) as (here, there):
        first = begin(here)
        assert await first.renew("k:1", "first", 1000) == ("first", True)
        assert await store(here, first) is None
        states = [begin(there, NOW + 500), begin(here, NOW)]
        for backend, state in zip((there, here), states, strict=True):
            assert await state.renew("k:1", "other", 1000) == ("first", False)
            assert await store(backend, state) is None
        assert await there.store.begin(NOW + 1500).get("k:1") == "first"
        # This daemon's cache has an earlier expiry. The value has not expired, because another daemon has renewed it.
        late = begin(here, NOW + 1400)
        assert await late.renew("k:1", "other", 1000) == ("first", False)
        assert await store(here, late) is None


async def test_after_a_conflict_all_later_events_of_the_call_run_again(
    server: RedisServer,
) -> None:
    async with two_daemons(server) as (here, there):
        await prepare(here)
        states = [begin(here) for _ in range(600)]  # more than one operation has
        for number, state in enumerate(states):
            await (state.get("k:1") if number == 300 else state.put(f"other:{number}", "x"))
        change = begin(there)
        await change.put("k:1", "new")
        assert await store(there, change) is None
        errors = await append_each(here.journal, [Append(state, Record("event", NOW, b"x")) for state in states])
        assert [type(error) for error in errors] == [type(None)] * 300 + [WriteConflict] * 300
        assert len(await read_all(here.journal)) == 301


async def test_an_event_that_has_read_a_write_that_failed_conflicts(server: RedisServer) -> None:
    async with two_daemons(server) as (here, there):
        await prepare(here)
        failing = begin(here)
        assert await failing.put("k:1", "never") == "old"
        reader = begin(here)
        assert await reader.get("k:1") == "never"
        change = begin(there)
        await change.put("k:1", "new")
        assert await store(there, change) is None
        assert isinstance(await store(here, failing), WriteConflict)
        assert isinstance(await store(here, reader), WriteConflict)
        again = begin(here)
        assert await again.get("k:1") == "new"
        assert await store(here, again) is None


async def test_a_write_of_the_same_value_does_not_let_a_later_merge_reach_other_events(server: RedisServer) -> None:
    async with two_daemons(server) as (here, _):
        await prepare(here)
        one, other = begin(here), begin(here)
        for state in (one, other):
            assert await state.put("k:1", "old") == "old"
        await other.merge("k:1", {"a": Field(1, "new")})
        assert not await one.swap("k:1", None, "absent")
        assert await store(here, one) is None
        assert await store(here, other) is None
        assert await begin(here).get("k:1") is None


@pytest.mark.logs("ingestd.redis ERROR one event could not be stored because of its content")
async def test_an_event_that_can_never_be_stored_fails_alone(server: RedisServer) -> None:
    async with two_daemons(server) as (here, _):
        states = [begin(here) for _ in range(3)]
        for number, state in enumerate(states):
            await state.put(f"k:{number}", "\ud800" if number == 1 else "x")
        errors = await append_each(here.journal, [Append(state, Record("event", NOW, b"x")) for state in states])
        assert [type(error) for error in errors] == [type(None), Failed, type(None)]
        assert await begin(here).get("k:1") is None


@pytest.mark.logs("ingestd.redis ERROR an operation failed: the stored data cannot be read: ")
async def test_a_damaged_value_fails_its_readers_and_no_other_operation(server: RedisServer) -> None:
    async with two_daemons(server) as (here, there):
        state = begin(here)
        await state.put("k:damaged", "x")
        await state.put("k:sound", "y")
        assert await store(here, state) is None
        key = f"{here.database.prefix}k:damaged"
        with server.client() as client:
            client.append(key, b"\xff")
        reading = begin(there).get("k:damaged")
        damaged, last, stored = await asyncio.gather(
            reading, there.journal.last(), store(there, begin(there)), return_exceptions=True
        )
        assert isinstance(damaged, Unavailable)
        assert (last, stored) == (1, None)
        assert await begin(there).get("k:sound") == "y"
        assert there.problem() is None


async def test_a_duplicate_message_writes_nothing(server: RedisServer) -> None:
    async with two_daemons(server) as (here, there):
        claims = [IdempotencyKey("message", f"{number}", 1000) for number in range(2)]
        states = [begin(backend) for backend in (here, there)]
        for number, state in enumerate(states):
            await state.push("s:1", f"{number}", number, keep=9)
        errors: list[Exception | None] = []
        for backend, state, claim in zip((here, there), states, claims, strict=True):
            append = Append(state, Record("event", NOW, claim.value.encode()), claim)
            errors += await append_each(backend.journal, [append])
        assert errors[0] is None
        assert isinstance(errors[1], DuplicateMessage)
        assert errors[1].value == "0"
        assert await begin(there).window("s:1") == [("0", 0)]
        assert [record.body for record in await read_all(here.journal)] == [b"0"]


# Serial order


class Transaction(NamedTuple):
    now: int
    operations: list[tuple[Any, ...]]


class Request(NamedTuple):
    daemon: int
    pause: int
    transactions: list[Transaction]


keys, sets = st.sampled_from(["k:1", "k:2"]), st.sampled_from(["s:1"])
texts, times, lives = st.sampled_from(["a", "b", "ü"]), st.integers(0, 4), st.sampled_from([None, 2, 5])
bounds = st.fixed_dictionaries({"keep": st.none() | st.integers(0, 2), "keep_size": st.none() | st.integers(0, 6)})
pushes = st.fixed_dictionaries(
    {"keep": st.integers(1, 3), "first": st.booleans(), "since": st.none() | times, "ttl": lives}
)
operations = st.one_of(
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("put"), keys, texts, lives),
    st.tuples(st.just("swap"), keys, st.none() | texts, texts, lives),
    st.tuples(st.just("renew"), keys, texts, st.sampled_from([2, 5])),
    st.tuples(st.just("delete"), keys | sets),
    st.tuples(st.just("merge"), keys, st.dictionaries(texts, st.builds(Field, times, texts), min_size=1), bounds),
    st.tuples(st.just("fields"), keys),
    st.tuples(st.just("push"), sets, texts, times, pushes),
    st.tuples(st.just("pull"), sets, st.lists(texts, max_size=2)),
    st.tuples(st.just("window"), sets, st.none() | times, st.none() | times),
    st.just(("pause",)),
)
transactions = st.builds(Transaction, st.sampled_from([100, 103, 106]), st.lists(operations, min_size=1, max_size=6))
requests = st.builds(Request, st.integers(0, 2), st.integers(0, 3), st.lists(transactions, min_size=1, max_size=3))


def call(target: Any, name: str, *arguments: Any) -> Any:
    options = arguments[-1] if isinstance(arguments[-1], dict) and name in {"merge", "push"} else {}
    return getattr(target, name), arguments[: len(arguments) - bool(options)], options


async def run(backend: RedisBackend, number: int, request: Request, history: list[str]) -> None:
    """Run a request as a daemon does, until all its transactions are committed. A record tells what each has read.

    `history` gets a line for each attempt of a transaction, in the order of the answers.
    """
    await asyncio.sleep(request.pause / 5000)
    left = [*enumerate(request.transactions)]
    for _ in range(100):
        appends = []
        for index, (now, operations) in left:
            state, results = begin(backend, now), []
            for name, *arguments in operations:
                if name == "pause":
                    await backend.journal.last()
                    continue
                method, given, options = call(state, name, *arguments)
                result = await method(*given, **options)
                results.append(None if name == "merge" else result)
            body = json.dumps({"request": number, "index": index, "results": results})
            appends.append(Append(state, Record("event", now, body.encode())))
        errors = await append_each(backend.journal, appends)
        for append, error in zip(appends, errors, strict=True):
            assert append.record is not None
            history.append(f"{append.record.body.decode()}: {error!r}")
        assert {type(error) for error in errors} <= {type(None), WriteConflict}
        left = [each for each, error in zip(left, errors, strict=True) if error is not None]
        if not left:
            return
    raise AssertionError("it conflicts for ever")


def replay(model: Model, transaction: Transaction) -> list[Any]:
    results = []
    for name, *arguments in transaction.operations:
        if name != "pause":
            method, given, options = call(model, name, *arguments)
            result = method(transaction.now, *given, **options)
            results.append(None if name == "merge" else result)
    return results


async def check_serial(url: str, given: Sequence[Request], history: list[str]) -> None:
    prefix = f"{uuid4()}:"
    async with (
        opened(url, prefix) as one,
        opened(url, prefix) as two,
        opened(url, prefix) as three,
    ):
        backends = (one, two, three)
        await asyncio.gather(*(run(backends[each.daemon], number, each, history) for number, each in enumerate(given)))
        history.append("the journal:")
        model = Model()
        done: list[tuple[int, int]] = []
        for record in await read_all(backends[0].journal):
            body = record.decode()
            transaction = given[body["request"]].transactions[body["index"]]
            serial = json.loads(json.dumps(replay(model, transaction)))
            history.append(f"{record.position}: {body}, serial: {serial}")
            assert body["results"] == serial
            done.append((body["request"], body["index"]))
        for number, request in enumerate(given):
            assert [index for which, index in done if which == number] == [*range(len(request.transactions))]
        reader = backends[1].store.begin(106)
        for key in ("k:1", "k:2"):
            assert (await reader.get(key), await reader.fields(key)) == (model.get(106, key), model.fields(106, key))
        assert await reader.window("s:1") == model.window(106, "s:1", None, None)


@contextmanager
def telling(given: Sequence[Request]) -> Iterator[list[str]]:
    """Adds a history to a failure, because with another timing the same example may pass."""
    history = [f"request {number}: {request}" for number, request in enumerate(given)]
    try:
        yield history
    except Exception as error:
        error.add_note("\n".join(history))
        raise


@settings(print_blob=True)
@given(st.lists(requests, min_size=1, max_size=8))
def test_committed_transactions_of_several_daemons_have_read_what_a_serial_order_gives(
    server: RedisServer, given: list[Request]
) -> None:
    """The journal has this order, because an event's record and its state are one commit."""
    with telling(given) as history:
        asyncio.run(check_serial(server.url, given, history))


async def check_serial_with_losses(
    server: RedisServer, given: Sequence[Request], losses: Mapping[int, bool], history: list[str]
) -> None:
    calls = 0

    def loses_request(sent: bytes) -> bool:
        nonlocal calls
        calls += b"EVALSHA" in sent
        return b"EVALSHA" in sent and losses.get(calls) is False

    def loses_reply(sent: bytes) -> bool:
        return b"EVALSHA" in sent and losses.get(calls) is True

    async with redis_proxy(server.port) as proxy:
        proxy.loses_request, proxy.loses_reply = loses_request, loses_reply
        await check_serial(proxy.url, given, history)


@settings(examples(20), print_blob=True)
@given(
    st.lists(requests, min_size=1, max_size=8),
    st.dictionaries(st.integers(1, 40), st.booleans(), min_size=1, max_size=4),
)
def test_the_order_is_serial_too_if_requests_and_answers_are_lost(
    server: RedisServer, given: list[Request], losses: dict[int, bool]
) -> None:
    """`losses`: by the number of the call, whether it arrives before the connection is cut."""
    with telling(given) as history:
        asyncio.run(check_serial_with_losses(server, given, losses, history))


# All or nothing


async def store_events(backend: RedisBackend, count: int) -> None:
    """Store events, each of which writes every kind of state. Raises `Unavailable`."""
    for number in range(count):
        state = begin(backend)
        await state.renew("k:session", f"{number}", 1000)
        await state.put("k:count", f"{int(await state.get('k:count') or 0) + 1}")
        await state.merge("f:1", {f"{number}": Field(number, "x")})
        await state.push("s:1", f"{number}", number, keep=99)
        claim = IdempotencyKey(f"message-{number}", f"{number}", 1000)
        (error,) = await append_each(backend.journal, [Append(state, Record("event", NOW, b"%d" % number), claim)])
        if error is not None:
            raise error


async def check_whole(url: str, prefix: str) -> int:
    """Each event has its record and all of its state, or nothing. Returns how many are stored."""
    async with opened(url, prefix) as backend:
        stored = [record.body.decode() for record in await read_all(backend.journal)]
        state = backend.store.begin(NOW)
        assert stored == [f"{number}" for number in range(len(stored))]
        assert int(await state.get("k:count") or 0) == len(stored)
        assert await state.get("k:session") == ("0" if stored else None)
        assert [*await state.fields("f:1")] == stored
        assert [member for member, _ in await state.window("s:1")] == stored
        claim = IdempotencyKey(f"message-{len(stored)}", "free", 1000)
        assert await append_each(backend.journal, [Append(begin(backend), None, claim)]) == [None]
        return len(stored)


def end_at(proxy: RedisProxy, last: int, *, arrives: bool) -> None:
    """Cut off the daemon for good at that call of the script, before or after it arrives."""
    calls = 0
    is_over = False

    def counts(sent: bytes) -> bool:
        nonlocal calls, is_over
        calls += sent.count(b"EVALSHA")
        is_over = is_over or calls > last
        return is_over

    if arrives:
        proxy.loses_request = lambda sent: is_over
        proxy.loses_reply = counts
    else:
        proxy.loses_request = counts


@pytest.mark.logs(CANNOT)
@pytest.mark.parametrize("arrives", [False, True], ids=["before", "after"])
async def test_a_daemon_that_ends_between_any_two_steps_leaves_each_event_whole(
    server: RedisServer, *, arrives: bool
) -> None:
    found = []
    for last in count():
        prefix = f"{uuid4()}:"
        async with redis_proxy(server.port) as proxy:
            with suppress(Unavailable):
                async with opened(proxy.url, prefix, patience=0.05) as backend:
                    end_at(proxy, last, arrives=arrives)
                    await store_events(backend, 4)
        found.append(await check_whole(server.url, prefix))
        if not proxy.lost:
            break
    assert found == sorted(found)
    assert {*found} == {*range(5)}


def kill_at(proxy: RedisProxy, server: RedisServer, last: int) -> list[asyncio.TimerHandle]:
    """Kill the server shortly after that call of the script has arrived. Returns kills, which may be to come."""
    calls, kills = 0, []

    def kill(sent: bytes) -> bool:
        nonlocal calls
        calls += sent.count(b"EVALSHA")
        if calls > last and server.is_running:
            kills.append(asyncio.get_running_loop().call_later(last % 4 / 4000, server.kill))
        return False

    proxy.loses_request = kill
    return kills


@pytest.mark.logs(CANNOT)
async def test_a_redis_that_is_killed_at_any_step_keeps_each_event_whole(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        for last in range(10):
            prefix = f"{uuid4()}:"

            async with redis_proxy(server.port) as proxy:
                with suppress(Unavailable):
                    async with opened(proxy.url, prefix, patience=0.05) as backend:
                        kills = kill_at(proxy, server, last)
                        await store_events(backend, 4)
            for kill in kills:
                kill.cancel()
            server.kill()
            await asyncio.to_thread(server.start)
            assert await check_whole(server.url, prefix) <= 4


# A cache that is wrong


async def test_a_cache_that_is_wrong_in_any_way_is_corrected(server: RedisServer) -> None:
    """Nothing but the check of the commit protects the state, so it must suffice."""
    async with two_daemons(server) as (here, there):
        await prepare(here)
        reader = begin(here)
        await reader.load(["k:1", "f:1"], ["s:1"])
        assert await store(here, reader) is None
        change = there.store.begin(NOW)
        await change.put("f:1", "now a value")
        await change.merge("k:1", {"now": Field(1, "fields")})
        await change.delete("s:1")
        await there.store.commit(change)
        for _ in range(2):
            state = begin(here)
            found = (
                await state.get("k:1"),
                await state.fields("k:1"),
                await state.get("f:1"),
                await state.window("s:1"),
            )
            error = await store(here, state)
        assert error is None
        assert found == (None, {"now": Field(1, "fields")}, "now a value", [])
