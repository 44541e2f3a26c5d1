"""What the clickhouse sink does in each trouble that its page lists, through a real daemon.

In each trouble the sink is failing, and its status, metrics and log say why. It waits, although it fails for many more
times than `retry.attempts`. Afterwards its target has each record once, and there is no dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest

from tests.support.clickhouse_server import ClickHouseServer, clickhouse_server
from tests.support.disks import full
from tests.support.ports import free_port
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.troubled_sink import TroubledSink, check_page, troubled_sink

_FAILURES = 8


class Warehouse(NamedTuple):
    server: ClickHouseServer
    proxy: TcpProxy
    sink: TroubledSink

    @contextmanager
    def altered(self, begin: str, end: str) -> Iterator[None]:
        self.server.sql(f"ALTER TABLE ingestd_records {begin}")
        try:
            yield
        finally:
            self.server.sql(f"ALTER TABLE ingestd_records {end}")

    @contextmanager
    def away(self) -> Iterator[None]:
        self.server.kill()
        try:
            yield
        finally:
            self.server.start()

    @contextmanager
    def away_at_the_start(self) -> Iterator[None]:
        port, other = str(self.proxy.port), str(free_port())
        self.sink.reconfigure(f"127.0.0.1:{port}", f"127.0.0.1:{other}")
        try:
            yield
        finally:
            self.sink.reconfigure(f"127.0.0.1:{other}", f"127.0.0.1:{port}")

    @contextmanager
    def impatient(self) -> Iterator[None]:
        self.sink.reconfigure('timeout = "5s"', 'timeout = "300ms"')
        try:
            yield
        finally:
            self.sink.reconfigure('timeout = "300ms"', 'timeout = "5s"')

    @contextmanager
    def held(self) -> Iterator[None]:
        with self.impatient():
            self.proxy.hold()
            try:
                yield
            finally:
                self.proxy.let_go()

    @contextmanager
    def slow(self) -> Iterator[None]:
        """An insert takes longer than the time limit. The server stores the rows all the same."""
        with self.impatient(), self.altered("ADD COLUMN slow UInt8 MATERIALIZED sleep(0.6)", "DROP COLUMN slow"):
            yield

    @contextmanager
    def quota(self) -> Iterator[None]:
        with self.configured(quota="<queries>10</queries>"):
            with suppress(AssertionError):
                while True:
                    self.server.sql("SELECT 1")
            yield

    @contextmanager
    def wrong_password(self) -> Iterator[None]:
        self.sink.reconfigure(self.server.password, "wrong")
        try:
            yield
        finally:
            self.sink.reconfigure("wrong", self.server.password)

    @contextmanager
    def configured(self, query: str | None = "SELECT 1", *, settings: str = "", quota: str = "") -> Iterator[None]:
        self.server.kill()
        self.server.configure(settings=settings, quota=quota)
        self.server.start(query)
        try:
            yield
        finally:
            self.server.kill()
            self.server.configure()
            self.server.start()


CLICKHOUSE: dict[str, tuple[Callable[[Warehouse], Any], str]] = {
    "away behind a proxy": (Warehouse.away, "closed the connection without an answer"),
    "unreachable at the start": (Warehouse.away_at_the_start, "the connection to .* failed: Connection refused"),
    "hangs": (Warehouse.held, "took longer than 0.3 s"),
    "slow": (Warehouse.slow, "a write took longer than 0.3 s"),
    "full": (lambda warehouse: full(warehouse.server.folder / "data"), "No space left|not enough space"),
    "quota": (Warehouse.quota, r"[Qq]uota.*exceeded.*\(code 201\)"),
    "read-only": (lambda warehouse: warehouse.configured(None, settings="<readonly>1</readonly>"), r"\(code 164\)"),
    "no memory": (
        lambda warehouse: warehouse.configured(None, settings="<max_memory_usage>1000</max_memory_usage>"),
        r"\(code 241\)",
    ),
    "wrong password": (Warehouse.wrong_password, r"\(code 193\)"),
    "a column is gone": (
        lambda warehouse: warehouse.altered("DROP COLUMN user_id", "ADD COLUMN user_id Nullable(String)"),
        "column user_id",
    ),
}


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    port = free_port()
    with clickhouse_server(disk_megabytes=64) as server, tcp_proxy(port, server.port) as proxy:

        def read() -> Sequence[Any]:
            rows = server.rows("SELECT record FROM ingestd_records FINAL WHERE type = 'event'")
            return [json.loads(row["record"]) for row in rows]

        options = (
            f'type = "clickhouse"\nurl = "http://127.0.0.1:{port}"\npassword = "{server.password}"\ntimeout = "5s"'
        )
        with troubled_sink(tmp_path_factory.mktemp("shop"), options, read) as sink:
            yield Warehouse(server, proxy, sink)


@pytest.mark.parametrize("trouble", CLICKHOUSE)
def test_clickhouse(warehouse: Warehouse, trouble: str) -> None:
    begin, message = CLICKHOUSE[trouble]
    warehouse.sink.waits_through(lambda: begin(warehouse), message, _FAILURES)


def test_the_page_lists_these_troubles_and_their_reasons() -> None:
    check_page("clickhouse.md", {name: message for name, (_, message) in CLICKHOUSE.items()})
