"""What the sinks kafka, clickhouse and parquet do in each trouble that their pages list, through a real daemon.

In each trouble the sink is failing, and its status, metrics and log say why. It waits, although it fails for many more
times than `retry.attempts`. Afterwards its target has each record once, and there is no dead letter.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector

from tests.support.clickhouse_server import ClickHouseServer, clickhouse_server
from tests.support.disks import small_disk
from tests.support.kafka_sink import Kafka, broker_with_logins
from tests.support.ports import free_port
from tests.support.s3_server import S3Server, s3_server
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.troubled_sink import TroubledSink, troubled_sink
from tests.support.webhook_server import raw_server

_FAILURES = 8
_PAGES = Path(__file__).parents[2] / "docs" / "sinks"


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """The disk of this folder is full."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    try:
        yield
    finally:
        ballast.unlink()


def rows_of(page: str) -> dict[str, str]:
    """The troubles in the table of a sink's page, each with the reason that the page shows."""
    table = (_PAGES / page).read_text().partition("| trouble |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| ([^|`]+?) \| `([^`]+)` \|", table, re.MULTILINE))


def test_the_pages_list_these_troubles_and_their_reasons() -> None:
    kafka = {name: message for name, (_, message, _) in KAFKA.items()}
    clickhouse, parquet = ({name: each[1] for name, each in some.items()} for some in (CLICKHOUSE, PARQUET | S3))
    for page, tested in (("kafka.md", kafka), ("clickhouse.md", clickhouse), ("parquet.md", parquet)):
        shown = rows_of(page)
        assert shown.keys() == tested.keys()
        assert not [name for name in tested if re.search(tested[name], shown[name]) is None]


# ClickHouse


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


# Parquet


class Lake(NamedTuple):
    """A lake in the folder `lake` of a small disk."""

    disk: Path
    sink: TroubledSink

    @property
    def root(self) -> Path:
        return self.disk / "lake"

    @contextmanager
    def gone(self) -> Iterator[None]:
        self.root.rename(self.disk / "elsewhere")
        try:
            yield
        finally:
            (self.disk / "elsewhere").rename(self.root)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        subprocess.run(["mount", "-o", "remount,ro", self.disk], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", self.disk], check=True)

    @contextmanager
    def other_columns(self) -> Iterator[None]:
        """A newer file is not of this sink, which is found when the sink is opened."""
        *_, newest = sorted(self.root.rglob("*.parquet"))
        other = newest.with_name("z.parquet")
        pq.write_table(pa.table({"id": [1]}), other)
        self.sink.reconfigure('max_size = "64MiB"', 'max_size = "32MiB"')
        try:
            yield
        finally:
            other.unlink()
            self.sink.reconfigure('max_size = "32MiB"', 'max_size = "64MiB"')

    @contextmanager
    def gone_at_the_start(self) -> Iterator[None]:
        """The folder around the lake is missing, too."""
        self.disk.rename(self.disk.with_name("elsewhere"))
        self.sink.reconfigure('max_size = "64MiB"', 'max_size = "32MiB"')
        try:
            yield
        finally:
            self.disk.with_name("elsewhere").rename(self.disk)
            self.sink.reconfigure('max_size = "32MiB"', 'max_size = "64MiB"')


PARQUET: dict[str, tuple[Callable[[Lake], Any], str]] = {
    "disk is full": (lambda lake: full(lake.disk), "No space left"),
    "folder is gone": (Lake.gone, "lake has gone"),
    "folder is read-only": (Lake.read_only, "Read-only file system"),
    "files have other columns": (
        Lake.other_columns,
        "the column id of .*z.parquet is int64, and the sink writes string",
    ),
}


def _events(table: pa.Table) -> list[Any]:
    return [record for text in table["record"].to_pylist() if (record := json.loads(text))["type"] == "event"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    disk = tmp_path_factory.mktemp("disk")

    def read() -> list[Any]:
        files = (disk / "lake").rglob("*.parquet")
        return [record for path in files for record in _events(pq.read_table(path, partitioning=None))]

    options = f'type = "parquet"\npath = "{disk}/lake"\nflush_every = "50ms"\nmax_size = "64MiB"'
    with (
        small_disk(disk, megabytes=8),
        troubled_sink(tmp_path_factory.mktemp("shop"), options, read) as sink,
    ):
        yield Lake(disk, sink)


@pytest.mark.parametrize("trouble", PARQUET)
def test_parquet_on_a_disk(lake: Lake, trouble: str) -> None:
    begin, message = PARQUET[trouble]
    lake.sink.waits_through(lambda: begin(lake), message, _FAILURES)


# Parquet in object storage


class Bucket(NamedTuple):
    server: S3Server
    proxy: TcpProxy
    sink: TroubledSink

    @contextmanager
    def diverted(self, port: int) -> Iterator[None]:
        self.proxy.divert(port)
        try:
            yield
        finally:
            self.proxy.divert(None)

    @contextmanager
    def away_at_the_start(self) -> Iterator[None]:
        with self.diverted(free_port()):
            self.sink.reconfigure('max_size = "64MiB"', 'max_size = "32MiB"')
            yield
        self.sink.reconfigure('max_size = "32MiB"', 'max_size = "64MiB"')

    @contextmanager
    def held(self) -> Iterator[None]:
        self.proxy.hold()
        try:
            yield
        finally:
            self.proxy.let_go()

    @contextmanager
    def wrong_secret(self) -> Iterator[None]:
        secret = self.server.storage["secret_key"]
        self.sink.reconfigure(secret, "wrong-secret")
        try:
            yield
        finally:
            self.sink.reconfigure("wrong-secret", secret)

    @contextmanager
    def answering(self, status: int, code: str) -> Iterator[None]:
        """Another server answers all requests with this error of S3."""
        text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
        head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n"
        with raw_server((head + text).encode()) as port, self.diverted(port):
            yield


S3: dict[str, tuple[Callable[[Bucket], Any], str]] = {
    "unreachable": (lambda bucket: bucket.diverted(free_port()), "NETWORK_CONNECTION"),
    "unreachable at the start": (Bucket.away_at_the_start, "NETWORK_CONNECTION"),
    "hangs": (Bucket.held, "took longer than .* s$|Timeout was reached"),
    "wrong secret": (Bucket.wrong_secret, "SIGNATURE_DOES_NOT_MATCH"),
    "access denied": (lambda bucket: bucket.answering(403, "AccessDenied"), "ACCESS_DENIED"),
    "bucket is gone": (lambda bucket: bucket.answering(404, "NoSuchBucket"), "NO_SUCH_BUCKET|no bucket shop"),
    "slow down": (lambda bucket: bucket.answering(503, "SlowDown"), "SLOW_DOWN"),
    "storage is full": (lambda bucket: bucket.answering(507, "InsufficientStorage"), "507"),
}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    port = free_port()
    with s3_server(tmp_path_factory.mktemp("s3")) as server, tcp_proxy(port, server.port) as proxy:

        def read() -> list[Any]:
            files = server.files()
            found = []
            for info in files.get_file_info(FileSelector("shop/lake", recursive=True, allow_not_found=True)):
                if info.path.endswith(".parquet"):
                    with files.open_input_file(info.path) as file:
                        found += _events(pq.read_table(file))
            return found

        storage = {**server.storage, "endpoint_override": f"127.0.0.1:{port}", "request_timeout": "1.0"}
        lines = "\n".join(f'storage.{name} = "{value}"' for name, value in storage.items())
        options = f'type = "parquet"\nurl = "s3://shop/lake"\nflush_every = "50ms"\nmax_size = "64MiB"\n{lines}'
        with troubled_sink(tmp_path_factory.mktemp("shop"), options, read) as sink:
            yield Bucket(server, proxy, sink)


@pytest.mark.parametrize("trouble", S3)
def test_parquet_in_object_storage(bucket: Bucket, trouble: str) -> None:
    begin, message = S3[trouble]
    bucket.sink.waits_through(lambda: begin(bucket), message, 3)


# Kafka


class Bus(NamedTuple):
    kafka: Kafka
    disk: Path
    sink: TroubledSink

    @contextmanager
    def full(self) -> Iterator[None]:
        """A broker whose only disk is full ends, and does not start again until there is space."""
        (broker,) = self.kafka.cluster.brokers
        with full(self.disk):
            broker.wait_until_ended()
            yield
        self.kafka.cluster.start()

    @contextmanager
    def changed(self, old: str, new: str) -> Iterator[None]:
        self.sink.reconfigure(old, new)
        try:
            yield
        finally:
            self.sink.reconfigure(new, old)

    def away_at_the_start(self) -> Any:
        return self.changed(f":{self.kafka.ports['LOGIN']}", f":{free_port()}")

    @contextmanager
    def without_rights(self) -> Iterator[None]:
        self.kafka.cluster.deny("shop", "WRITE", "events")
        try:
            yield
        finally:
            self.kafka.cluster.allow("shop", "WRITE", "events")


KAFKA: dict[str, tuple[Callable[[Bus], Any], str, int]] = {
    "full": (Bus.full, "Connection refused", 3),
    "unreachable at the start": (Bus.away_at_the_start, "Connection refused", 3),
    "wrong password": (lambda bus: bus.changed('"correct"', '"incorrect"'), "uthentication", 3),
    "a right is missing": (Bus.without_rights, r"\(TOPIC_AUTHORIZATION_FAILED\)", 4),
    "no topic": (lambda bus: bus.changed('"events"', '"other"'), "there is no topic other", 3),
}


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("kafka")
    with broker_with_logins(folder, disk_megabytes=64) as kafka:
        kafka.cluster.create("events")
        for topic in ("events", "other"):
            kafka.cluster.allow("shop", "WRITE", topic)

        def read() -> list[Any]:
            return [record for record in kafka.cluster.records("events") if record["type"] == "event"]

        options = (
            f'type = "kafka"\nbrokers = ["127.0.0.1:{kafka.ports["LOGIN"]}"]\ntopic = "events"\ncreate = false\n'
            'user = "shop"\npassword = "correct"'
        )
        with troubled_sink(tmp_path_factory.mktemp("shop"), options, read) as sink:
            yield Bus(kafka, kafka.cluster.brokers[0].data, sink)


@pytest.mark.parametrize("trouble", KAFKA)
def test_kafka(bus: Bus, trouble: str) -> None:
    begin, message, failures = KAFKA[trouble]
    bus.sink.waits_through(lambda: begin(bus), message, failures)
