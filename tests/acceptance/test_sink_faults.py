"""A sink fails in several ways: callers do not notice, operators are informed, and no record is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import Load, wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.distribution import write_distribution
from tests.support.ports import free_port

PLUGIN = '''
    """A sink that sends batches to a depot over TCP: a line each, and a line comes back."""

    import asyncio
    import contextlib
    import json
    import time

    from ingestd.api import hookimpl
    from ingestd.api.errors import ConfigError, SinkReject
    from ingestd.api.options import Options
    from ingestd.api.sink import Sink


    class DepotSink(Sink):
        class Options(Options):
            port: int
            manner: str = "plain"

        _reader = _writer = None

        def __init__(self, name, options):
            super().__init__(name, options)
            if options.manner == "lingering":
                with contextlib.suppress(RuntimeError):  # no daemon's loop
                    asyncio.get_running_loop().run_in_executor(None, time.sleep, 20)
            if options.manner not in {"plain", "stubborn", "blocking"}:
                raise ConfigError(f"sinks.{name}.manner: there is none like {options.manner!r}")

        async def open(self):
            await self.close()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.options.port, limit=1 << 24)

        async def write(self, batch):
            if self._writer is None:
                await self.open()
            try:
                answer = json.loads(await self._ask(b"[" + b",".join(record.body for record in batch) + b"]\\n"))
                rejected = {int(index): reason for index, reason in answer["rejected"].items()}
            except BaseException:
                await self.close()
                raise
            if rejected:
                raise SinkReject(rejected)

        async def _ask(self, question):
            self._writer.write(question)
            await self._writer.drain()
            if self.options.manner == "blocking":
                await asyncio.to_thread(time.sleep, 20)
            while self.options.manner == "stubborn":
                try:
                    await asyncio.sleep(20)
                except asyncio.CancelledError:
                    pass
            answer = await self._reader.readline()
            if not answer:
                raise ConnectionResetError("the depot hung up")
            return answer

        async def close(self):
            writer, self._reader, self._writer = self._writer, None, None
            if writer is not None:
                writer.close()


    @hookimpl
    def register_sinks(register):
        register("depot", DepotSink)
'''


class Depot:
    """The server that the sink writes to. It takes a batch whole or not at all."""

    def __init__(self) -> None:
        self.port = free_port()
        self.records: list[dict[str, Any]] = []
        self.writes = 0
        self.seconds = 0.0
        """The duration of each write."""
        self.garbage = False
        self.refused: set[str] = set()
        """Numbers of events that the depot rejects."""
        self.poison: set[str] = set()
        """Numbers of events at which the depot closes the connection."""
        self._connections: set[Any] = set()
        self._server: socketserver.ThreadingTCPServer | None = None
        self._going = threading.Event()

    def start(self) -> None:
        depot = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                depot._connections.add(self.connection)
                with suppress(OSError):
                    while (line := self.rfile.readline()) and depot.take(line, self.wfile.write):
                        pass
                depot._connections.discard(self.connection)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

        self._going.clear()
        self._server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Stops listening and closes all connections, also during writes."""
        self._going.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in [*self._connections]:
            with suppress(OSError):
                connection.shutdown(2)

    def take(self, line: bytes, answer: Callable[[bytes], object]) -> bool:
        """Takes a batch, and returns whether the connection stays open."""
        self.writes += 1
        if self.seconds and self._going.wait(self.seconds):
            return False
        if self.garbage:
            answer(b"<html>504 \xff Gateway</html>\n")
            return True
        batch = json.loads(line)
        numbers = [record.get("data", {}).get("number") for record in batch]
        if self.poison & {*numbers}:
            return False
        rejected = {index: f"no {number}" for index, number in enumerate(numbers) if number in self.refused}
        if not rejected:
            self.records += batch
        answer(json.dumps({"rejected": rejected}).encode() + b"\n")
        return True

    @property
    def ids(self) -> list[str]:
        return [*dict.fromkeys(record["id"] for record in self.records)]


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = write_distribution(
        tmp_path_factory.mktemp("site"), "depot-sink", modules={"depot_sink": PLUGIN}, plugins={"depot": "depot_sink"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        yield


@pytest.fixture
def depot() -> Iterator[Depot]:
    depot = Depot()
    depot.start()
    yield depot
    depot.stop()


def make_shop(folder: Path, depot: Depot, **lines: str) -> Shop:
    """A shop with the sinks `depot` and `archive`. Options are for `depot`, except `shutdown_timeout` of `http`."""
    options = {
        "timeout": '"200ms"',
        "retry": '{ attempts = 3, initial = "5ms", max = "50ms" }',
        "batch": '{ max_wait = "10ms" }',
        **lines,
    }
    http = options.pop("shutdown_timeout", '"10s"')
    given = "".join(f"\n{name} = {value}" for name, value in options.items())
    tables = {
        "sinks.depot": f'type = "depot"\nport = {depot.port}{given}',
        "http": f"shutdown_timeout = {http}",
    }
    return Shop(folder, tables)


def metric(daemon: Daemon, name: str, sink: str = "depot") -> float:
    return daemon.metric(f'ingestd_sink_{name}{{sink="{sink}"}}')


def post(daemon: Daemon, shop: Shop, number: str, key: str = "Page View") -> None:
    event = {"key": key, "anonymousId": f"visitor-{number}", "data": {"number": number}}
    assert daemon.post("/track", event, shop.public.id).status == 200


def dead_letters(shop: Shop) -> list[dict[str, Any]]:
    lines = shop.command("sinks", "dead-letters", "list", "depot", "--json").splitlines()
    return [json.loads(line) for line in lines]


def assert_nothing_is_missing(shop: Shop, depot: Depot, dead: set[str]) -> None:
    """Checks after the daemon's end: each record is in the archive, and in the depot (in order) or a dead letter."""
    journal = shop.stored()
    assert {record["id"] for record in shop.archived()} == {record["id"] for record in journal}
    wanted = [record["id"] for record in journal if record.get("data", {}).get("number") not in dead]
    assert sorted(depot.ids) == sorted(wanted)
    visitors = {record["id"]: record["anonymousId"] for record in journal}
    for visitor in {*visitors.values()}:
        own = [record["id"] for record in journal if record["anonymousId"] == visitor and record["id"] in {*wanted}]
        assert [each for each in depot.ids if visitors[each] == visitor] == own
    letters = dead_letters(shop)
    positions = {record["data"]["number"]: at for at, record in enumerate(journal, 1) if "number" in record["data"]}
    assert {letter["position"] for letter in letters} == {positions[number] for number in dead}


# Wrong options


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"prot": "1"}, "sinks.depot.prot: unknown option; did you mean sinks.depot.port?"),
        ({"timeout": '"0s"'}, "sinks.depot.timeout: expected more than 0"),
        ({"manner": '"rude"'}, "sinks.depot.manner: there is none like 'rude'"),
        ({"batch": "{ max_events = 0 }"}, "sinks.depot.batch.max_events: "),
        ({"batch": '{ max_bytes = "0B" }'}, "sinks.depot.batch.max_bytes: "),
        ({"retry": "{ attempts = 0 }"}, "sinks.depot.retry.attempts: "),
        ({"retry": "{ atempts = 3 }"}, "did you mean sinks.depot.retry.attempts?"),
        ({"filter": '{ keys = ["Page Veiw"] }'}, "there is no event key 'Page Veiw'; did you mean Page View?"),
        ({"start": '"yesterday"'}, "sinks.depot.start: "),
    ],
)
def test_an_option_that_can_never_work_stops_the_start_and_is_named(
    lines: dict[str, str], said: str, tmp_path: Path, depot: Depot
) -> None:
    shop = make_shop(tmp_path, depot, **lines)
    done = run_ingestd("serve", config=shop.config)
    assert done.returncode == 78, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert depot.writes == 0


def test_the_reason_is_told_though_a_thread_of_the_sink_does_not_end(tmp_path: Path, depot: Depot) -> None:
    done = run_ingestd("serve", config=make_shop(tmp_path, depot, manner='"lingering"').config)
    assert done.returncode == 78
    assert done.stderr.splitlines()[-1].endswith("sinks.depot.manner: there is none like 'lingering'")


# Temporary failures


@contextmanager
def vanishing(depot: Depot) -> Iterator[None]:
    """The depot disappears during a write, and does not listen until the end of the block."""
    depot.seconds = 5
    yield
    depot.stop()
    depot.seconds = 0
    depot.start()


@contextmanager
def away(depot: Depot) -> Iterator[None]:
    depot.stop()
    yield
    depot.start()


@contextmanager
def slow(depot: Depot) -> Iterator[None]:
    """Each write takes longer than the sink's timeout."""
    depot.seconds = 30
    yield
    depot.stop()
    depot.seconds = 0
    depot.start()


@contextmanager
def garbage(depot: Depot) -> Iterator[None]:
    depot.garbage = True
    yield
    depot.garbage = False


@pytest.mark.parametrize("fault", [vanishing, away, slow, garbage])
def test_callers_and_other_sinks_notice_nothing_and_operators_are_informed(
    fault: Callable[[Depot], AbstractContextManager[None]], tmp_path: Path, depot: Depot
) -> None:
    shop = make_shop(tmp_path, depot)
    with shop.serve() as daemon:
        post(daemon, shop, "before")
        wait_until(lambda: metric(daemon, "delivered_total") == 1)
        with fault(depot):
            begun = time.monotonic()
            for number in range(30):
                post(daemon, shop, f"during-{number}")
            assert time.monotonic() - begun < 30 * 0.25  # no answer waits for a write, which takes up to its timeout
            wait_until(lambda: metric(daemon, "delivered_total", "archive") == 31)
            assert metric(daemon, "pending", "archive") == metric(daemon, "retries_total", "archive") == 0
            retries = metric(daemon, "retries_total")
            wait_until(lambda: metric(daemon, "retries_total") >= retries + 6)
            wait_until(lambda: metric(daemon, "pending") == 30)  # the end of the journal is known a moment later
            assert metric(daemon, "delivered_total") == 1
            assert metric(daemon, "dead_letters") == metric(daemon, "paused") == metric(daemon, "filtered_total") == 0
            age = metric(daemon, "oldest_pending_seconds")
            assert 0 < age < 60
            wait_until(lambda: metric(daemon, "oldest_pending_seconds") > age)
            ready = daemon.ops("/readyz")  # readiness depends on the store, not on sinks
            assert (ready.status, ready.body) == (200, b"ok\n")
        wait_until(lambda: metric(daemon, "delivered_total") == 31)
        assert metric(daemon, "pending") == metric(daemon, "oldest_pending_seconds") == 0
        assert metric(daemon, "dead_letters") == 0
    assert any("sink:depot: " in line and "it is tried again (failure 1 in a row)" in line for line in daemon.log)
    assert any("sink:depot: works again after" in line for line in daemon.log)
    assert_nothing_is_missing(shop, depot, set())


def test_a_sink_that_is_unreachable_at_the_start_gets_all_records_later(tmp_path: Path, depot: Depot) -> None:
    depot.stop()
    shop = make_shop(tmp_path, depot)
    with shop.serve() as daemon:
        assert daemon.ops("/readyz").status == 200
        for number in range(5):
            post(daemon, shop, f"{number}")
        wait_until(lambda: metric(daemon, "pending") == 5 and metric(daemon, "oldest_pending_seconds") > 0)
        wait_until(lambda: metric(daemon, "retries_total") > 3)
        # The command shows operators the reason, and the sink can be paused like others.
        (status,) = [json.loads(line) for line in shop.command("sinks", "status", "depot", "--json").splitlines()]
        wait_until(lambda: _reason(shop) is not None)
        assert status["sink"] == "depot"
        assert "Connect" in str(_reason(shop))
        shop.command("sinks", "pause", "depot")
        wait_until(lambda: metric(daemon, "paused") == 1)
        depot.start()
        shop.command("sinks", "resume", "depot")
        wait_until(lambda: metric(daemon, "delivered_total") == 5)
        wait_until(lambda: _reason(shop) is None)
        assert metric(daemon, "paused") == 0
    assert_nothing_is_missing(shop, depot, set())


def _reason(shop: Shop) -> str | None:
    (status,) = [json.loads(line) for line in shop.command("sinks", "status", "depot", "--json").splitlines()]
    error = status["lastError"]
    return None if error is None else str(error["reason"])


# Records that the sink does not take


def test_one_rejected_record_of_a_thousand_delays_no_other(tmp_path: Path, depot: Depot) -> None:
    shop = make_shop(tmp_path, depot, filter='{ types = ["event"] }', timeout='"30s"')
    depot.refused = {"load-3-20"}
    with shop.serve() as daemon:
        with Load(daemon.port, shop.public.id) as load:
            wait_until(lambda: len(load.answered) >= 1000)
        count = len(load.answered)
        assert {sent.status for sent in load.sent} == {200}
        identity = {"anonymousId": "visitor-1", "userId": "u"}
        assert daemon.post("/identify/public", identity, shop.public.id).status == 200
        wait_until(lambda: metric(daemon, "filtered_total") == 1)
        assert metric(daemon, "pending") == 0
        assert metric(daemon, "delivered_total") == count - 1
        assert metric(daemon, "dead_letters") == 1
        assert metric(daemon, "retries_total") == 0  # a rejected record is not a failure of the sink
        assert daemon.ops("/readyz").status == 200
    (letter,) = dead_letters(shop)
    assert letter["reason"] == "no load-3-20"
    journal = shop.stored()
    assert journal[letter["position"] - 1]["data"]["number"] == "load-3-20"
    assert {*depot.ids} == {record["id"] for record in journal[:-1]} - {journal[letter["position"] - 1]["id"]}


def test_poison_becomes_a_dead_letter_and_is_delivered_after_the_sink_was_repaired(
    tmp_path: Path, depot: Depot
) -> None:
    shop = make_shop(tmp_path, depot, timeout='"30s"')
    depot.poison = {"7", "12"}
    with shop.serve() as daemon:
        for number in range(20):
            post(daemon, shop, f"{number}")
        wait_until(lambda: metric(daemon, "dead_letters") == 2 and metric(daemon, "delivered_total") == 18)
        assert metric(daemon, "pending") == 0
        assert metric(daemon, "retries_total") >= 3
        assert {letter["reason"] for letter in dead_letters(shop)} == {"ConnectionResetError: the depot hung up"}
        depot.poison = set()
        shop.command("sinks", "dead-letters", "retry", "depot", "--all")
        wait_until(lambda: metric(daemon, "dead_letters") == 0)
    assert_nothing_is_missing(shop, depot, set())


def test_kills_at_any_moment_lose_no_record(tmp_path: Path, depot: Depot) -> None:
    """The depot also restarts, rejects one record in ten and closes the connection at others."""
    chance = random.Random(7)
    shop = make_shop(tmp_path, depot, batch='{ max_wait = "10ms", max_events = 20 }', timeout='"50ms"')
    dead: set[str] = set()
    answered: set[str] = set()
    for life in range(4):
        with Daemon(shop.config) as daemon, Load(daemon.port, shop.public.id, f"life-{life}", threads=2) as load:
            depot.refused |= {f"life-{life}-{thread}-{count}" for thread in range(2) for count in range(1, 300, 10)}
            depot.poison |= {f"life-{life}-0-{chance.randrange(2, 9)}"}
            depot.seconds = chance.choice([0, 0, 0.01, 0.03, 1])
            end = time.monotonic() + 0.2 + chance.random() / 2
            while time.monotonic() < end:
                if chance.random() < 0.1:
                    depot.stop()
                    depot.start()
                time.sleep(0.02)
            daemon.kill()
            load.join()
            answered |= {sent.number for sent in load.answered}
    depot.seconds = 0
    with shop.serve() as daemon:
        for number in range(3):
            post(daemon, shop, f"end-{number}")
        newest = shop.stored()[-1]["id"]
        wait_until(lambda: newest in depot.ids and shop.archived()[-1:] == shop.stored()[-1:])
    numbers = {record["data"]["number"] for record in shop.stored()}
    assert answered <= numbers
    dead = (depot.refused | depot.poison) & numbers
    assert dead
    assert_nothing_is_missing(shop, depot, dead)


# Shutting down


@pytest.mark.parametrize("manner", ["plain", "stubborn", "blocking"])
def test_a_sink_that_hangs_does_not_delay_the_stop(manner: str, tmp_path: Path, depot: Depot) -> None:
    """The same holds for a sink that resists cancellation, and for a sink with a blocked thread."""
    shop = make_shop(tmp_path, depot, timeout='"30s"', manner=f'"{manner}"', shutdown_timeout='"500ms"')
    depot.seconds = 30
    with Daemon(shop.config) as daemon:
        for number in range(4):
            post(daemon, shop, f"{number}")
        wait_until(lambda: metric(daemon, "pending") == 4 and depot.writes > 0)
        begun = time.monotonic()
        os.kill(daemon.pid, signal.SIGTERM)
        try:
            assert daemon.wait() == 0
        except subprocess.TimeoutExpired:
            pytest.fail("the daemon does not stop:\n" + "\n".join(daemon.log))
        took = time.monotonic() - begun
    assert any(line.endswith("sink:depot: 4 records left for the next start") for line in daemon.log), daemon.log
    # The time to catch up and, if the sink resists cancellation, the time for a task to end.
    assert took < (3 if manner == "plain" else 10)
    assert depot.records == []
    depot.seconds = 0
    depot.stop()
    depot.start()
    shop.config.write_text(shop.config.read_text().replace(f'manner = "{manner}"', 'manner = "plain"'))
    with shop.serve() as daemon:
        wait_until(lambda: metric(daemon, "delivered_total") == 4)
    assert_nothing_is_missing(shop, depot, set())


def test_a_stop_does_not_wait_for_a_paused_sink_and_reports_its_records(tmp_path: Path, depot: Depot) -> None:
    shop = make_shop(tmp_path, depot)
    with Daemon(shop.config) as daemon:
        post(daemon, shop, "0")
        wait_until(lambda: metric(daemon, "delivered_total") == 1)
        shop.command("sinks", "pause", "depot")
        wait_until(lambda: metric(daemon, "paused") == 1)
        post(daemon, shop, "1")
        post(daemon, shop, "2")
        wait_until(lambda: metric(daemon, "pending") == 2 and metric(daemon, "oldest_pending_seconds") > 0)
        begun = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - begun < 5  # less than the ten seconds to catch up
    assert any(line.endswith("sink:depot: 2 records left for the next start") for line in daemon.log), daemon.log
    with shop.serve() as daemon:
        wait_until(lambda: metric(daemon, "paused") == 1)
        assert metric(daemon, "pending") == 2
        shop.command("sinks", "resume", "depot")
        wait_until(lambda: metric(daemon, "delivered_total") == 2)
    assert_nothing_is_missing(shop, depot, set())
