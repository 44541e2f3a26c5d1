"""Failures of Redis: callers get an answer in time, nothing is lost or repeated, and the daemon recovers alone."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from ingestd.api.errors import ConfigError, DuplicateMessage, Unavailable, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.api.store import Field, State
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.testing.backends import append_each
from tests.support.journals import read_all, until
from tests.support.ports import free_port
from tests.support.redis_proxy import RedisProxy, redis_proxy
from tests.support.redis_server import RedisServer, make_certificate, redis_server
from tests.support.standstill import stand_still
from tests.support.tcp_proxy import tcp_proxy

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
DAY = 86_400_000
TIMEOUT = 0.5
PATIENCE = 1.0
BOUND = TIMEOUT + PATIENCE + 1.0
STILL = 2 * TIMEOUT + PATIENCE + 0.1
DOCS = Path(__file__).parents[4] / "docs"

CANNOT = "ingestd.redis WARNING events cannot be stored: "

Fault = Callable[[RedisServer], AbstractContextManager[None]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


@asynccontextmanager
async def opened(url: str, *, patience: float = PATIENCE) -> AsyncIterator[RedisBackend]:
    pool = make_pool(url, (), timeout=TIMEOUT)
    backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=patience)
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


async def append(backend: RedisBackend, text: str, claim: IdempotencyKey | None = None) -> None:
    """Append an event without state."""
    await append_with(backend, backend.store.begin(NOW, event=True), text, claim)


async def append_with(backend: RedisBackend, state: State, text: str, claim: IdempotencyKey | None = None) -> None:
    record = Record("event", NOW, text.encode())
    (error,) = await append_each(backend.journal, [Append(state, record, claim)])
    if error is not None:
        raise error


async def renew(backend: RedisBackend, key: str, candidate: str) -> tuple[str, bool]:
    """Store an event that renews a value."""
    while True:
        state = backend.store.begin(NOW, event=True)
        renewed = await state.renew(key, candidate, DAY)
        with suppress(WriteConflict):
            await append_with(backend, state, candidate)
            return renewed


async def value_of(backend: RedisBackend, key: str) -> str | None:
    return await backend.store.begin(NOW).get(key)


async def stored(backend: RedisBackend) -> list[str]:
    return [record.body.decode() for record in await read_all(backend.journal)]


async def refused(backend: RedisBackend, text: str) -> float:
    """Append a record that cannot be stored. Returns the seconds until the refusal."""
    begun = time.monotonic()
    with pytest.raises(Unavailable) as raised:
        await append(backend, text)
    assert raised.value.retry_after == 1
    return time.monotonic() - begun


# Faults of the server


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    server.signal(signal.SIGSTOP)
    yield
    server.signal(signal.SIGCONT)


@contextmanager
def out_of_memory(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        yield
        client.config_set("maxmemory", "0")


@contextmanager
def unable_to_save(server: RedisServer) -> Iterator[None]:
    """A server whose snapshots fail, so it refuses writes."""
    in_the_way = server.folder / "dump.rdb"
    with server.client() as client:
        in_the_way.mkdir()
        client.config_set("save", "3600 1000000")
        client.bgsave()
        while client.info("persistence")["rdb_bgsave_in_progress"]:
            time.sleep(0.01)
        yield
        in_the_way.rmdir()
        client.bgsave()


@contextmanager
def turned_into_a_replica(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.replicaof("127.0.0.1", free_port())
        yield
        client.replicaof("NO", "ONE")


FAULTS: dict[Fault, str] = {
    killed: "Connect call failed",
    stopped: "does not answer",
    out_of_memory: "maxmemory",
    unable_to_save: "MISCONF",
    turned_into_a_replica: "read only replica",
}


@pytest.mark.logs(CANNOT)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_fault_is_reported_in_time_and_the_daemon_recovers(fault: Fault, server: RedisServer) -> None:
    async with opened(server.url) as backend:
        state = backend.store.begin(NOW, event=True)
        await state.put("known", "value")
        await append_with(backend, state, "before")
        with fault(server):
            crowd = await asyncio.gather(*(refused(backend, f"crowd-{number}") for number in range(20)))
            assert max(crowd) < BOUND
            problem = backend.problem()
            assert problem is not None
            assert re.search(FAULTS[fault], problem), problem
            # A known fault is answered without waiting.
            assert await refused(backend, "known") < TIMEOUT
            begun = time.monotonic()
            for reading in (value_of(backend, "known"), backend.journal.last()):
                with pytest.raises(Unavailable):
                    await reading
            assert time.monotonic() - begun < TIMEOUT
        await until(lambda: backend.problem() is None)  # the daemon recovers without any event
        await append(backend, "after")
        assert await value_of(backend, "known") == "value"
        texts = await stored(backend)
        # Refused records may be stored: a stopped server handles them later.
        assert [text for text in texts if not text.startswith("crowd")] == ["before", "after"]
        assert max(Counter(texts).values()) == 1


@pytest.mark.logs(CANNOT)
async def test_a_network_that_takes_no_data_is_a_fault(server: RedisServer) -> None:
    """Megabytes fill all buffers, so that the daemon cannot even send."""
    async with redis_proxy(server.port) as proxy, opened(proxy.url) as backend:
        await append(backend, "before")
        proxy.hold()
        large = [refused(backend, f"large {number}".ljust(1_500_000)) for number in range(8)]
        assert max(await asyncio.gather(*large)) < BOUND
        proxy.let_go()
        await until(lambda: backend.problem() is None)
        # The rest of a batch is not sent later, when Redis may have forgotten that it has done it already.
        assert await stored(backend) == ["before"]


@pytest.mark.parametrize("tls", [False, True])
async def test_a_slow_line_has_time_for_all_that_is_on_its_way(tls: bool, tmp_path: Path) -> None:
    key, cert = make_certificate(tmp_path)
    port = free_port()
    options = {
        "tls-port": str(port), "tls-auth-clients": "no",
        "tls-cert-file": str(cert), "tls-key-file": str(key), "tls-ca-cert-file": str(cert),
    }  # fmt: skip
    with (
        redis_server(tmp_path / "redis", options) as server,
        tcp_proxy(free_port(), port if tls else server.port) as line,
    ):
        here = f"localhost:{line.port}/0"
        url = f"rediss://{here}?ssl_ca_certs={cert}" if tls else f"redis://{here}"
        async with opened(url, patience=30.0) as backend:
            line.pause = 0.003  # seconds for 64 KiB, so that all of it takes longer than the timeout
            await asyncio.gather(*(append(backend, f"{number}".ljust(3_000_000)) for number in range(8)))
            assert [text.rstrip() for text in await stored(backend)] == [f"{number}" for number in range(8)]


async def test_answers_are_read_while_later_events_wait_for_the_line(server: RedisServer) -> None:
    with tcp_proxy(free_port(), server.port) as line:
        async with opened(f"redis://127.0.0.1:{line.port}/0", patience=60.0) as backend:
            await append(backend, "before")
            line.pause = 0.005  # seconds for 64 KiB
            first, later = (
                [asyncio.create_task(append(backend, f"{kind} {number}".ljust(1_000_000))) for number in range(12)]
                for kind in ("first", "later")
            )
            await until(lambda: int(server.client().info()["total_net_input_bytes"]) > 13_000_000, 30.0)
            line.hold_requests()
            await asyncio.wait_for(asyncio.gather(*first), 15.0)
            line.let_go()
            await asyncio.gather(*later)
            assert len(await stored(backend)) == 25


async def test_closing_waits_for_a_batch_that_is_being_sent(server: RedisServer) -> None:
    with tcp_proxy(free_port(), server.port) as proxy:
        async with opened(f"redis://127.0.0.1:{proxy.port}/0", patience=30.0) as backend:
            await append(backend, "before")
            proxy.hold()
            events = [asyncio.create_task(append(backend, f"{number}".ljust(600_000))) for number in range(12)]
            await asyncio.sleep(0.02)  # the turn of the last one sends the batch, and waits until the network takes it
            closing = asyncio.create_task(backend.database.link.close())
            await asyncio.sleep(0.02)
            proxy.let_go()
            await asyncio.wait_for(closing, 20.0)
            assert [event.done() for event in events] == [True] * 12
            await asyncio.gather(*events)


async def test_an_event_that_is_cancelled_while_it_is_sent_takes_no_answer_of_others(server: RedisServer) -> None:
    with tcp_proxy(free_port(), server.port) as proxy:
        async with opened(f"redis://127.0.0.1:{proxy.port}/0", patience=8.0) as backend:
            await append(backend, "before")
            proxy.hold()
            events = {f"large {number}": 600_000 for number in range(12)}
            tasks = [asyncio.create_task(append(backend, text.ljust(size))) for text, size in events.items()]
            await asyncio.sleep(0.02)
            tasks[-1].cancel()  # its turn has sent the batch, and waits until the network takes data
            await asyncio.sleep(0.02)
            proxy.let_go()
            tasks += [asyncio.create_task(append(backend, f"later {number}")) for number in range(12)]
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20.0)
            assert [type(result) for result in results if result is not None] == [asyncio.CancelledError]
            texts = [text.rstrip() for text in await stored(backend)]
            told = [*(f"large {number}" for number in range(11)), *(f"later {number}" for number in range(12))]
            assert sorted({*texts} - {"large 11"}) == sorted(["before", *told])
            assert len(texts) == len({*texts})


@pytest.mark.logs(CANNOT)
async def test_a_held_loop_does_not_hide_an_outage(server: RedisServer) -> None:
    async def hold() -> None:
        while True:
            await asyncio.sleep(0.9 * TIMEOUT)
            time.sleep(0.4 * TIMEOUT)  # noqa: ASYNC251 - it is to hold the loop

    async with opened(server.url) as backend:
        with stopped(server):
            holding = asyncio.create_task(hold())
            for ask in (append(backend, "refused"), backend.database.durability()):
                with pytest.raises(Unavailable):
                    await ask
            holding.cancel()
        await until(lambda: backend.problem() is None)


@pytest.mark.logs(CANNOT)
async def test_everything_answered_is_there_after_many_kills(server: RedisServer) -> None:
    answered: list[str] = []
    sent: list[str] = []
    ending = False

    async def send(backend: RedisBackend, sender: int) -> None:
        while not ending:
            sent.append(f"{sender}-{len(sent)}")
            text = sent[-1]
            try:
                await append(backend, text)
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                answered.append(text)

    async with opened(server.url) as backend:
        senders = [asyncio.create_task(send(backend, number)) for number in range(10)]
        for pause in (0.0, 0.2, 2 * BOUND):  # a short outage is only a delay
            count = len(answered)
            await until(lambda count=count: len(answered) > count + 50)  # type: ignore[misc]  # mypy infers no type of a lambda's default
            server.kill()
            await asyncio.sleep(pause)
            await asyncio.to_thread(server.start)
        count = len(answered)
        await until(lambda: len(answered) > count + 50)
        ending = True
        await asyncio.gather(*senders)
        texts = await stored(backend)
    assert max(Counter(texts).values()) == 1
    assert set(answered) <= set(texts) <= set(sent)


async def test_a_short_stop_is_only_a_delay(server: RedisServer) -> None:
    async with opened(server.url, patience=10.0) as backend:
        await append(backend, "before")
        server.signal(signal.SIGSTOP)
        appends = [asyncio.create_task(append(backend, f"{number}")) for number in range(20)]
        await asyncio.sleep(
            3 * TIMEOUT
        )  # the daemon repeats its requests on new connections, and Redis handles all of them at last
        server.signal(signal.SIGCONT)
        await asyncio.gather(*appends)
        assert backend.problem() is None
        assert await stored(backend) == ["before", *(f"{number}" for number in range(20))]


@pytest.mark.parametrize("seconds", [1.2 * TIMEOUT, STILL])
async def test_a_process_that_stands_still_finds_its_answers(server: RedisServer, seconds: float) -> None:
    """As after Ctrl-Z and `fg`. Redis has answered, so this is no failure of Redis."""
    pool = make_pool(server.url, (), timeout=TIMEOUT)
    backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=PATIENCE)
    await stand_still(backend.open(serving=False), seconds)
    await stand_still(append(backend, "e-1"), seconds)
    await stand_still(backend.database.durability(), seconds)
    assert await stored(backend) == ["e-1"]
    await backend.close()


async def test_the_patience_begins_after_a_standstill(server: RedisServer) -> None:
    """The network of a machine that wakes is back a moment later."""
    async with opened(server.url, patience=3.0) as backend:
        await backend.journal.last()
        back = threading.Timer(4.5, server.start)
        back.start()
        await stand_still(append(backend, "kept"), 4.0, meanwhile=server.kill)
        back.join()
        assert await stored(backend) == ["kept"]


@pytest.mark.logs(CANNOT)
async def test_a_batch_that_redis_may_have_forgotten_is_not_sent_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis would do it twice."""
    monkeypatch.setattr("ingestd.plugins.stores.redis.link._REPEATED", STILL)
    async with opened(server.url) as backend:
        await backend.journal.last()
        with server.client() as client:
            client.client_pause(60_000, all=False)  # the batch is stored only while the process stands still

            def forget() -> None:
                client.client_unpause()
                while not (remembered := [*client.scan_iter("shop:batch:*")]):
                    pass
                client.delete(*remembered)

            with pytest.raises(Unavailable):
                await stand_still(append(backend, "once"), STILL, meanwhile=forget)
        await until(lambda: backend.problem() is None)
        assert await stored(backend) == ["once"]


async def test_a_server_that_is_a_replica_for_a_moment_is_only_a_delay(server: RedisServer) -> None:
    async with opened(server.url, patience=10.0) as backend:
        with turned_into_a_replica(server):
            appended = asyncio.create_task(append(backend, "kept"))
            await asyncio.sleep(TIMEOUT)
            assert not appended.done()
        await appended
        assert backend.problem() is None
        assert await stored(backend) == ["kept"]


async def test_flushed_scripts_are_loaded_again(server: RedisServer) -> None:
    async with opened(server.url) as backend:
        with server.client() as client:
            for number in range(5):
                client.script_flush()
                assert await renew(backend, "key", f"{number}") == ("0", number == 0)
                assert backend.problem() is None
        assert await stored(backend) == [f"{number}" for number in range(5)]


# Faults of the connection


def first(count: int, word: bytes) -> Callable[[bytes], bool]:
    """A predicate that is true for the first `count` requests that contain the word."""
    left = count

    def judge(sent: bytes) -> bool:
        nonlocal left
        if left and word in sent:
            left -= 1
            return True
        return False

    return judge


@asynccontextmanager
async def through_proxy(server: RedisServer, patience: float = 10.0) -> AsyncIterator[tuple[RedisProxy, RedisBackend]]:
    async with redis_proxy(server.port) as proxy, opened(proxy.url, patience=patience) as backend:
        await backend.journal.last()
        yield proxy, backend


@pytest.mark.parametrize("times", [1, 3])
async def test_an_append_whose_reply_is_lost_is_stored_once_and_answered(server: RedisServer, times: int) -> None:
    async with through_proxy(server) as (proxy, backend):
        proxy.loses_reply = first(times, b"append")
        claim = IdempotencyKey("message", "mine", DAY)
        await append(backend, "once", claim)
        assert proxy.lost == times
        assert backend.problem() is None
        with pytest.raises(DuplicateMessage, match="stored already"):
            await append(backend, "again", claim)
        await append(backend, "next")
        assert await stored(backend) == ["once", "next"]


async def test_a_renewal_whose_reply_is_lost_gets_the_first_answer(server: RedisServer) -> None:
    async with through_proxy(server) as (proxy, backend):
        proxy.loses_reply = first(2, b"append")
        answers = await asyncio.gather(*(renew(backend, "key", candidate) for candidate in ("one", "two")))
        assert proxy.lost == 2
        assert answers == [("one", True), ("one", False)]
        assert await renew(backend, "key", "three") == ("one", False)


async def test_every_write_whose_reply_is_lost_is_done_once(server: RedisServer) -> None:
    async with through_proxy(server) as (proxy, backend):
        state = backend.store.begin(NOW)
        proxy.loses_reply = first(1, b"load")
        assert await state.put("key", "one") is None
        proxy.loses_reply = first(1, b"commit")
        await backend.store.commit(state)
        proxy.loses_reply = first(1, b"commit")
        assert await state.swap("key", "one", "two")
        await backend.store.commit(state)
        proxy.loses_reply = first(1, b"acquire_cursor")
        cursor = await backend.journal.acquire_cursor("consumer", "beginning")
        for position in (7, 8):
            step = backend.store.begin(NOW, step=True)
            await step.push("set", f"{position}", position, keep=9)
            proxy.loses_reply = first(1, b"commit")
            assert await backend.journal.commit([], step, cursor._replace(position=position)) == position
        assert proxy.lost == 6
        assert await backend.store.begin(NOW).window("set") == [("7", 7), ("8", 8)]


async def test_a_request_that_does_not_arrive_is_sent_again(server: RedisServer) -> None:
    async with through_proxy(server) as (proxy, backend):
        proxy.loses_request = first(2, b"append")
        await asyncio.gather(*(append(backend, f"{number}") for number in range(5)))
        assert proxy.lost == 2
        assert await stored(backend) == ["0", "1", "2", "3", "4"]


async def test_a_late_reply_is_not_taken_for_the_reply_to_another_request(server: RedisServer) -> None:
    async with through_proxy(server) as (proxy, backend):
        proxy.hold()
        asked = [asyncio.create_task(renew(backend, f"key-{number}", f"{number}")) for number in range(3)]
        last = asyncio.create_task(backend.journal.last())
        await asyncio.sleep(3 * TIMEOUT)
        proxy.let_go()
        assert await asyncio.gather(*asked) == [(f"{number}", True) for number in range(3)]
        assert await last in range(4)
        found = await asyncio.gather(*(value_of(backend, f"key-{number}") for number in range(3)))
        assert found == ["0", "1", "2"]
        assert backend.problem() is None


@pytest.mark.logs(CANNOT)
async def test_a_message_refused_without_a_reply_is_not_stored_again(server: RedisServer) -> None:
    """The sender got 503 and sends the message again. It was stored, and the answer is that of a duplicate."""
    async with through_proxy(server, patience=PATIENCE) as (proxy, backend):
        claim = IdempotencyKey("message", "mine", DAY)
        proxy.loses_reply = first(1000, b"append")
        with pytest.raises(Unavailable):
            await append(backend, "once", claim)
        proxy.loses_reply = first(0, b"")
        await until(lambda: backend.problem() is None)
        with pytest.raises(DuplicateMessage, match="stored already") as claimed:
            await append(backend, "once", claim)
        assert claimed.value.value == "mine"
        assert await stored(backend) == ["once"]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_lost_requests_and_replies_do_not_change_the_answers(server: RedisServer, seed: int) -> None:
    chance = random.Random(seed)
    async with through_proxy(server, patience=30.0) as (proxy, backend):
        proxy.loses_request = lambda sent: b"EVALSHA" in sent and chance.random() < 0.2
        proxy.loses_reply = lambda sent: b"EVALSHA" in sent and chance.random() < 0.3

        async def one(number: int) -> tuple[str, bool]:
            await asyncio.sleep(chance.random() / 2)
            while True:
                state = backend.store.begin(NOW, event=True)
                renewed = await state.renew(f"visitor-{number % 7}", f"{number}", DAY)
                await state.push("set", f"{number}", number, keep=1000)
                with suppress(WriteConflict):
                    await append_with(backend, state, f"{number}")
                    return renewed

        renewed = await asyncio.gather(*(one(number) for number in range(100)))
        assert proxy.lost > 2
        assert backend.problem() is None
        for visitor in range(7):
            answers = renewed[visitor::7]
            assert len({value for value, _ in answers}) == 1
            assert [value for value, is_new in answers if is_new] == [answers[0][0]]
        assert sorted(await stored(backend), key=int) == [f"{number}" for number in range(100)]
        window = await backend.store.begin(NOW).window("set")
        assert window == [(f"{number}", number) for number in range(100)]


# Logins, rights and connections


async def test_a_wrong_password_stops_the_start(tmp_path: Path) -> None:
    with redis_server(tmp_path, {}) as server:
        with server.client() as client:
            client.config_set("requirepass", "right")
        for user in (":wrong", "", "nobody:right"):
            url = f"redis://{user}@127.0.0.1:{server.port}/0" if user else server.url
            with pytest.raises(ConfigError) as raised:
                async with opened(url):
                    pass
            assert "wrong" not in str(raised.value).removeprefix("Redis refuses access: WRONGPASS")
        async with opened(f"redis://:right@127.0.0.1:{server.port}/0") as backend:
            await append(backend, "in")


async def test_an_unreachable_server_is_a_temporary_failure() -> None:
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be reached"):
        async with opened(f"redis://127.0.0.1:{free_port()}/0"):
            pass
    assert time.monotonic() - begun < BOUND


async def test_a_silent_server_is_a_temporary_failure(server: RedisServer) -> None:
    server.signal(signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="does not answer"):
        async with opened(server.url):
            pass
    assert time.monotonic() - begun < BOUND


@pytest.mark.logs(CANNOT)
async def test_a_changed_password_is_reported_and_the_daemon_recovers(server: RedisServer) -> None:
    async with opened(server.url) as backend:
        with server.client() as client:
            client.config_set("requirepass", "new")
            client.client_kill_filter(_type="normal", skipme=True)
            assert await refused(backend, "no") < BOUND
            problem = backend.problem()
            assert problem is not None
            assert re.search("(?i)authentication", problem), problem
            client.config_set("requirepass", "")
            await until(lambda: backend.problem() is None)
        await append(backend, "after")
        assert await stored(backend) == ["after"]


def documented_rights() -> list[str]:
    """The rights of the daemon's user in `docs/redis.md`."""
    command = re.search(r"`ACL SETUSER ingestd on >… (.*?)`", (DOCS / "redis.md").read_text(), re.DOTALL)
    assert command is not None
    return command[1].split()


def let_in(server: RedisServer, rights: list[str]) -> str:
    """Create a user with these rights. Returns the URL with its login."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "ingestd", "reset", "on", ">secret", *rights)
    return f"redis://ingestd:secret@127.0.0.1:{server.port}/0"


async def use_everything(backend: RedisBackend) -> None:
    """Use every operation of state, journal and consumers."""
    state = backend.store.begin(NOW)
    await state.put("key:a", "value", DAY)
    await state.renew("key:a", "other", DAY)
    await state.swap("key:a", "value", "other")
    await state.push("set", "one", 1, keep=1, ttl=DAY)
    await state.push("set", "two", 2, keep=1, since=2)
    assert await state.window("set") == [("two", 2)]
    await state.merge("fields", {"one": Field(1, "x"), "two": Field(2, "x")}, keep=1)
    assert await state.fields("fields") == {"two": Field(2, "x")}
    await backend.store.commit(state)
    await state.pull("set", ["two"])
    await state.delete("key:a")
    await state.put("key:b", "value")
    await backend.store.commit(state)
    assert [entry async for entry in backend.store.scan("key")] == [("key:b", "value")]
    await append(backend, "one", IdempotencyKey("message", "mine", DAY))
    await append(backend, "two")
    cursor = await backend.journal.acquire_cursor("consumer", "beginning")
    step = backend.store.begin(NOW, step=True)
    await step.push("set", "three", 3, keep=9, ttl=DAY)
    await step.put("key:c", "value")
    await step.merge("fields", {"three": Field(3, "x")}, keep=1)
    await backend.journal.commit([], step, cursor._replace(position=1))
    (record,) = await backend.journal.read(1, 1)
    assert await backend.journal.replace([(record, b"-")]) == 1
    assert await stored(backend) == ["one", "-"]
    assert await backend.journal.trim(1, 10) == 1
    assert len(await backend.journal.outlines(0, 10)) == (await backend.journal.extent()).records == 1
    assert await backend.journal.cursors()
    await backend.journal.release(cursor)
    assert {finding.name: finding.status for finding in await backend.describe()}["write"] == "ok"


async def test_the_documented_rights_are_sufficient(server: RedisServer) -> None:
    rights = [right.replace("~ingestd:", "~shop:") for right in documented_rights()]
    async with opened(let_in(server, rights)) as backend:
        assert backend.durability is not None
        assert backend.durability.known
        await use_everything(backend)


@pytest.mark.logs("ingestd.redis WARNING Redis does not say whether a restart keeps its data")
async def test_without_the_right_to_read_settings_there_is_a_warning(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    rights = [right.replace("~ingestd:", "~shop:") for right in documented_rights()]
    asking = {"+info", "+config|get"}
    assert asking <= {*rights}
    async with opened(let_in(server, [right for right in rights if right not in asking])) as backend:
        assert backend.durability is not None
        assert not backend.durability.known
        assert "does not say whether a restart keeps its data" in caplog.text
        await use_everything(backend)
        assert {finding.name: finding.status for finding in await backend.describe()}["durability"] == "warning"


async def test_tls_with_a_self_signed_certificate(tmp_path: Path) -> None:
    port = free_port()
    key, certificate = make_certificate(tmp_path)
    options = {
        "tls-port": str(port), "tls-cert-file": str(certificate), "tls-key-file": str(key),
        "tls-ca-cert-file": str(certificate), "tls-auth-clients": "no",
    }  # fmt: skip
    with redis_server(tmp_path / "redis", options):
        async with opened(f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}") as backend:
            await use_everything(backend)
        with pytest.raises(Unavailable, match="certificate"):  # the certificate is not trusted
            async with opened(f"rediss://localhost:{port}/0"):
                pass


async def test_a_unix_socket_and_a_database_number_work(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    with redis_server(tmp_path / "redis", {"unixsocket": str(socket)}) as server:
        async with opened(f"unix://{socket}?db=3") as backend:
            await use_everything(backend)
        with server.client() as client:
            assert client.dbsize() == 0, "everything is in the database of the URL"


@pytest.mark.logs(CANNOT)
async def test_closing_without_a_server_ends_in_time(server: RedisServer) -> None:
    async with opened(server.url) as backend:
        await backend.journal.acquire_cursor("consumer", "beginning")
        server.kill()
        begun = time.monotonic()
    assert time.monotonic() - begun < BOUND
    with pytest.raises(Unavailable):
        await append(backend, "too late")
