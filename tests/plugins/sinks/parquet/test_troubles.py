"""What the parquet sink does in each trouble that its page lists, through a real daemon.

In each trouble the sink is failing, and its status, metrics and log say why. It waits, although it fails for many more
times than `retry.attempts`. Afterwards its target has each record once, and there is no dead letter.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector

from tests.support.disks import full, small_disk
from tests.support.ports import free_port
from tests.support.s3_server import S3Server, s3_server
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.troubled_sink import TroubledSink, check_page, troubled_sink
from tests.support.webhook_server import raw_server

_FAILURES = 8


# On a disk


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
        # pyarrow closes a file that it opened some time after the answer, and the disk is unmounted.
        files = [pa.BufferReader(path.read_bytes()) for path in (disk / "lake").rglob("*.parquet")]
        return [record for file in files for record in _events(pq.read_table(file))]

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


# In object storage


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


def test_the_page_lists_these_troubles_and_their_reasons() -> None:
    check_page("parquet.md", {name: message for name, (_, message) in (PARQUET | S3).items()})
