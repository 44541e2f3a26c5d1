"""The iceberg sink with real catalogues: over REST, in PostgreSQL, and with what can happen on the way to them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, event

from ingestd.api.errors import SinkRetry
from ingestd.plugins.sinks.iceberg import IcebergSink
from ingestd.testing.writes import span_of
from tests.support.clients import wait_until
from tests.support.daemon import Reply
from tests.support.iceberg_catalogues import JavaCatalogue, RestCatalogue, WeedCatalogue, catalogue
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.recording_proxy import Exchange, RecordingProxy, recording_proxy
from tests.support.sinks import configured, ids_of
from tests.support.tcp_proxy import tcp_proxy

from .test_iceberg import SCHEMAS, of_every_table, rows_in, store
from .test_writers import compact_as_others_do

KINDS = [WeedCatalogue, pytest.param(JavaCatalogue, marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def rest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogue]:
    with catalogue(request.param, tmp_path_factory.mktemp("catalogue")) as server:
        yield server


@pytest.fixture
def proxy(rest: RestCatalogue) -> Iterator[RecordingProxy]:
    with recording_proxy(rest.port) as proxy:
        yield proxy


@pytest.fixture
def sink(rest: RestCatalogue, proxy: RecordingProxy, tmp_path: Path) -> IcebergSink:
    return with_catalogue(rest.properties(proxy.port), tmp_path)


def with_catalogue(properties: dict[str, str], folder: Path, namespace: str | None = None) -> IcebergSink:
    options = {"catalog": properties, "namespace": namespace or f"n{uuid4().hex}"}
    sink = configured(IcebergSink, "lake", options, folder)
    sink.schemas = SCHEMAS
    return sink


def answer(status: int, type_: str = "Exception") -> Reply:
    body = json.dumps({"error": {"message": "as the test says", "type": type_, "code": status}}).encode()
    return Reply(status, {"content-type": "application/json"}, body)


class Once:
    """Happens to the first commit of records to a table."""

    def __init__(self, table: str, happens: Callable[[], Reply | None]) -> None:
        self._table = table
        self._happens = happens
        self.done = 0

    def concerns(self, method: str, body: bytes) -> bool:
        commits = method == "POST" and b'"add-snapshot"' in body and f'"name":"{self._table}"'.encode() in body
        self.done += commits
        return commits and self.done == 1

    def before(self, method: str, body: bytes) -> Reply | None:
        return self._happens() if self.concerns(method, body) else None


async def test_a_table_is_written_kept_and_checked_over_rest(rest: RestCatalogue, tmp_path: Path) -> None:
    sink = with_catalogue(rest.properties(), tmp_path)
    await sink.check()  # nothing is there yet
    await sink.open()
    batch = of_every_table(range(1, 17))
    for start in range(0, 16, 4):
        await store(sink, batch[start : start + 4])
    await store(sink, batch[12:])  # a flush that a crash interrupted behind its commit
    assert [row["id"] for row in rows_in(sink)] == ids_of(batch)
    assert sink.upkeep().compact(None)["merged"] > 0
    assert sink.upkeep().old.expire(0.0)["files"] > 0
    await store(sink, more := of_every_table(range(17, 25)))
    assert [row["id"] for row in rows_in(sink)] == ids_of([*batch, *more])
    await sink.check()
    assert sink.risks() == []
    await sink.close()


LOST = [
    None,
    answer(409, "CommitFailedException"),
    Reply(200, {}, b"<html>Please try again</html>"),
    *(pytest.param(answer(status), marks=pytest.mark.long) for status in (401, 429, 500, 502, 503, 504)),
]
REFUSED = [401, 409, 503, *(pytest.param(status, marks=pytest.mark.long) for status in (400, 403, 404, 419, 429, 500))]


@pytest.mark.parametrize("instead", LOST, ids=lambda reply: str(reply and reply.status))
async def test_a_commit_whose_answer_is_lost_is_in_the_table_once(
    sink: IcebergSink, proxy: RecordingProxy, instead: Reply | None
) -> None:
    """The commit is carried out. The sink gets nothing, or what a gateway says, such as a conflict with it."""
    await sink.open()
    batch = of_every_table(range(1, 17))
    await store(sink, batch[:8])
    once = Once("events", lambda: None)

    def lost(exchange: Exchange) -> bool:
        if not once.concerns(exchange.method, exchange.body):
            return False
        assert exchange.reply.status == 200
        if instead is not None:
            object.__setattr__(exchange, "reply", instead)
        return instead is None

    proxy.loses = lost
    await sink.write(batch[8:])
    for _ in range(3):
        with suppress(SinkRetry):
            await sink.flush(span_of(batch[8:]))
            break
    assert once.done >= 1
    await store(sink, more := of_every_table(range(17, 25)))
    assert [row["id"] for row in rows_in(sink)] == ids_of([*batch, *more])
    await sink.check()
    assert sink.risks() == []
    await sink.close()


@pytest.mark.parametrize("status", REFUSED)
async def test_a_commit_that_is_refused_is_made_again(sink: IcebergSink, proxy: RecordingProxy, status: int) -> None:
    await sink.open()
    batch = of_every_table(range(1, 9))
    for table in ("attributions", "events"):
        once = Once(table, lambda: answer(status))
        proxy.answers = once.before
        await sink.write(batch)
        for _ in range(3):
            with suppress(SinkRetry):
                await sink.flush(span_of(batch))
                break
        assert once.done == 2
        proxy.answers = lambda _, __: None
        batch = of_every_table(range(9, 17))
    assert [row["position"] for row in rows_in(sink)] == [*range(1, 17)]
    await sink.close()


async def test_a_commit_that_meets_another_writer_is_made_again(
    rest: RestCatalogue, sink: IcebergSink, proxy: RecordingProxy, tmp_path: Path
) -> None:
    await sink.open()
    batch = of_every_table(range(1, 17))
    await store(sink, batch[:8])
    other = with_catalogue(rest.properties(), tmp_path, sink.options.namespace)

    def meet() -> None:
        compact_as_others_do(other)

    once = Once("events", meet)
    proxy.answers = once.before
    await store(sink, batch[8:])
    assert once.done == 2
    assert [row["id"] for row in rows_in(sink)] == ids_of(batch)
    other.tables.close()
    await sink.close()


async def test_a_clock_that_jumps_holds_up_no_commit(sink: IcebergSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's own catalogue refuses snapshots that go back in time."""
    await sink.open()
    batch, now = of_every_table(range(1, 17)), time.time()
    for start, ahead in ((0, 0.0), (4, 86_400.0), (8, 0.0), (12, -86_400.0)):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", partial(float, now + ahead))
            await store(sink, batch[start : start + 4])
    assert [row["id"] for row in rows_in(sink)] == ids_of(batch)
    await sink.close()


async def test_a_catalogue_that_answers_late_holds_up_no_thread_for_ever(
    sink: IcebergSink, proxy: RecordingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit is carried out between the look of the second attempt and its commit."""
    await sink.open()
    again, carried_out = threading.Event(), threading.Event()

    def before(method: str, body: bytes) -> Reply | None:
        if once.concerns(method, body):
            assert again.wait(60)
        elif once.done == 2:
            again.set()
            assert carried_out.wait(60)
        return None

    def behind(exchange: Exchange) -> bool:
        if again.is_set():
            carried_out.set()
        return False

    monkeypatch.setattr("ingestd.plugins.sinks.iceberg.catalogues._REST_TIMES", (5.0, 2.0))
    batch = of_every_table(range(1, 9))
    once = Once("events", lambda: None)
    proxy.answers, proxy.loses = before, behind
    await sink.write(batch)
    with pytest.raises(SinkRetry, match="ReadTimeout"):
        await sink.flush(span_of(batch))
    monkeypatch.undo()
    await sink.flush(span_of(batch))
    assert once.done == 2
    await store(sink, more := of_every_table(range(9, 17)))
    assert [row["id"] for row in rows_in(sink)] == ids_of([*batch, *more])
    await sink.close()


async def test_a_catalogue_that_dies_and_comes_back(tmp_path: Path, rest: RestCatalogue) -> None:
    sink = with_catalogue(rest.properties(), tmp_path)
    await sink.open()
    batch = of_every_table(range(1, 17))
    await store(sink, batch[:8])
    await sink.write(batch[8:])
    rest.kill()
    for attempt in (sink.check, lambda: sink.flush(span_of(batch[8:]))):
        with pytest.raises(SinkRetry, match="Connection refused"):
            await attempt()
    rest.start()
    await sink.flush(span_of(batch[8:]))
    assert [row["id"] for row in rows_in(sink)] == ids_of(batch)
    await sink.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def in_postgres(server: PostgresServer, port: int, folder: Path, **options: str) -> IcebergSink:
    uri = server.url(**options).replace("postgresql:", "postgresql+psycopg2:").replace(f":{server.port}/", f":{port}/")
    return with_catalogue({"uri": uri, "warehouse": f"file://{folder}/lake"}, folder, folder.name)


async def test_a_catalogue_in_postgresql_that_is_restarted(postgres: PostgresServer, tmp_path: Path) -> None:
    sinks = [in_postgres(postgres, postgres.port, tmp_path) for _ in range(2)]
    for opened in await asyncio.gather(*(sink.open() for sink in sinks), return_exceptions=True):
        assert opened is None or isinstance(opened, SinkRetry)  # both have made the tables of the catalogue
    for sink in sinks:
        await sink.open()
    batch = of_every_table(range(1, 33))
    await store(sinks[0], batch[:8])
    postgres.stop()
    await sinks[0].write(batch[8:16])
    with pytest.raises(SinkRetry) as refused:
        await sinks[0].flush(span_of(batch[8:16]))
    assert "battery" not in str(refused.value)
    postgres.start()
    await sinks[0].flush(span_of(batch[8:16]))
    postgres.kill()
    postgres.start()
    await store(sinks[1], batch[16:24])  # its connection is gone
    await store(sinks[0], batch[24:])
    assert [row["id"] for row in rows_in(sinks[0])] == ids_of(batch)
    wrong = in_postgres(postgres, postgres.port, tmp_path, password="a wrong one")
    with pytest.raises(SinkRetry, match="password authentication failed") as refused:
        await wrong.check()
    assert "wrong one" not in str(refused.value)
    for sink in (*sinks, wrong):
        await sink.close()


async def test_a_commit_in_postgresql_whose_answer_is_lost_is_in_the_table_once(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with tcp_proxy(free_port(), postgres.port) as proxy:
        sink = in_postgres(postgres, proxy.port, tmp_path)
        await sink.open()
        batch = of_every_table(range(1, 17))
        await store(sink, batch[:8])
        location = "SELECT metadata_location FROM iceberg_tables WHERE table_name = 'events'"
        before = postgres.sql(location)

        def cut() -> None:
            wait_until(lambda: postgres.sql(location) != before)
            proxy.cut()
            proxy.let_go()

        cutting = threading.Thread(target=cut)

        def hold(_: object) -> None:
            """Before a COMMIT, which the server carries out."""
            proxy.hold_answers()
            cutting.start()

        event.listen(Engine, "commit", hold, once=True)
        await sink.write(batch[8:])
        with pytest.raises(SinkRetry, match="server closed the connection unexpectedly"):
            await sink.flush(span_of(batch[8:]))
        cutting.join()
        await sink.flush(span_of(batch[8:]))
        assert [row["id"] for row in rows_in(sink)] == ids_of(batch)
        await sink.close()


async def test_a_postgresql_that_says_nothing_holds_up_no_thread_for_ever(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.iceberg.catalogues._POSTGRES_TIMES", {"connect_timeout": "2"})
    with tcp_proxy(free_port(), postgres.port) as proxy:
        proxy.hold()
        sink = in_postgres(postgres, proxy.port, tmp_path)
        with pytest.raises(SinkRetry, match="timeout expired"):
            await sink.check()
        proxy.let_go()
        await sink.check()
        await sink.close()
