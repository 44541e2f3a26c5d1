"""The `parquet` sink: writes records to Parquet files of a lake, by type and date.

The sink is buffering. Its buffer has compressed files in memory, one for each type and date. A flush stores them under
names made of the positions of its span. So a flush that is made again replaces its files, and each record is there
once. Before replayed records are stored, the sink reads the ids of the files with these positions, and leaves out the
records that are there.

Compressing and storing block, so they are done on a thread. Failures of the storage never count against a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkReject
from ingestd.api.events import Record
from ingestd.api.options import Options, PositiveDuration, PositiveSize, Secret, Size, Url, remote_host
from ingestd.api.sink import Digest, Sink, Span
from ingestd.support.pace import Pace

from .. import not_installed
from ..azure import signatures
from ..columns import digests_of, make_rows, read
from ..own_thread import OwnThread

if TYPE_CHECKING:
    from .lake import Folder, Lake
    from .rows import FileBuffer, PartitionFile

__all__ = ["ParquetOptions", "ParquetSink", "check_target", "register_sinks"]


class ParquetOptions(Options):
    path: Path | None = None
    """A local folder. The sink creates it if only the folder itself is missing."""
    url: Url | None = None
    """Instead of `path`: `s3://bucket/folder`, `gs://…`, `abfss://…` or another URL that pyarrow or fsspec takes."""
    storage: dict[str, Secret] = msgspec.field(default_factory=dict)
    """Arguments of the file system of the URL, such as keys, region and endpoint."""
    flush_every: PositiveDuration = PositiveDuration.parse("10m")
    """How long the first record waits at most until its file is written."""
    max_size: PositiveSize = Size.parse("128MiB")
    """The most JSON of the records in memory until the files are written."""


def check_target(options: ParquetOptions, path: str) -> None:
    if (options.path is None) == (options.url is None):
        raise ConfigError(f"{path}.path: give either path, a local folder, or url, such as s3://bucket/folder")
    if options.storage and options.url is None:
        raise ConfigError(f"{path}.storage: has no effect without url")


_SLICE_RECORDS = 256
_SLICE = 0.002  # seconds of work after which other tasks get a turn


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("parquet", ParquetSink)


class ParquetSink(Sink):
    Options = ParquetOptions
    buffering = True
    can_verify = True

    def __init__(self, name: str, options: ParquetOptions) -> None:
        super().__init__(name, options)
        check_target(options, f"sinks.{name}")
        try:
            from .lake import Lake, LocalFolder, ObjectFolder
            from .rows import FileBuffer
        except ImportError:
            raise not_installed(name, "pyarrow", "parquet") from None
        self.flush_after = float(options.flush_every)
        self._most = int(options.max_size)
        folder: Folder
        if options.path is not None:
            folder = LocalFolder(options.path)
        else:
            assert options.url is not None
            folder = ObjectFolder(
                str(options.url), {key: _typed(key, str(each)) for key, each in options.storage.items()}
            )
        self.lake: Lake = Lake(folder, _secrets(options))
        self._buffer: FileBuffer = FileBuffer()
        self._stored: set[str] = set()
        """The folders whose files a flush has stored, in case that it is made again."""
        self._may_repeat = True
        """Whether the next flush may be one that a crash has interrupted. Its files may be merged by now."""
        self._thread = OwnThread(f"parquet-{name}")

    def risks(self) -> Sequence[str]:
        options = self.options
        given = {**dict(parse_qsl(urlsplit(options.url or "").query)), **options.storage}
        endpoint = str(given.get("endpoint_override", ""))
        if not endpoint.startswith("http://") and given.get("scheme") != "http":
            return ()
        host = remote_host(endpoint if "://" in endpoint else f"//{endpoint or 'the object storage'}")
        if host is None:
            return ()
        return [f"sinks.{self.name}.storage: the records are sent to {host} without TLS; use an endpoint with https"]

    async def open(self) -> None:
        self._empty()
        self._may_repeat = True
        await self._thread.do(self.lake.open)

    async def write(self, batch: Sequence[Record]) -> None:
        await self._thread.done()
        found, refused = await make_rows(batch, read)
        if refused:
            raise SinkReject(refused)
        rows = [*found.values()]
        pace = Pace(_SLICE)
        for start in range(0, len(batch), _SLICE_RECORDS):
            self._buffer.add(rows[start : start + _SLICE_RECORDS], batch[start : start + _SLICE_RECORDS])
            await pace.give_way()
            if self._buffer.needs_compressing:
                await self._thread.do(self._buffer.compress)

    def is_full(self) -> bool:
        return self._buffer.size >= self._most

    async def flush(self, span: Span | None) -> None:
        await self._thread.do(self._store, self._buffer, span)
        self._empty()

    async def check(self) -> None:
        await self._thread.do(self.lake.check)

    async def digests(self, begin: int, end: int, step: int) -> Mapping[int, Digest]:
        return await self._thread.do(lambda: digests_of(self._received(begin, end), step))

    async def ids(self, begin: int, end: int) -> Sequence[str]:
        return await self._thread.do(lambda: [id_ for id_, _ in self._received(begin, end)])

    def _received(self, begin: int, end: int) -> Iterator[tuple[str, int]]:
        self.lake.open()
        return self.lake.received(begin, end)

    @property
    def records(self) -> str:
        """The folder, as readers of Parquet files take it."""
        return str(self.options.path or self.options.url).rstrip("/")

    async def close(self) -> None:
        await self._thread.close()
        self._empty()

    def _empty(self) -> None:
        self._buffer = type(self._buffer)()
        self._stored = set()

    def _store(self, buffer: FileBuffer, span: Span | None) -> None:
        """Store the files that are not stored yet."""
        may_repeat, self._may_repeat = self._may_repeat, True  # a failed call may have stored its file
        for folder, file in buffer.finish(self._stored):
            if span is None or (may_repeat and self.lake.is_merged(folder, file.first, file.last)):
                self._store_missing(folder, file)
            else:
                self.lake.put(f"{folder}/{_name_of(span)}", file.content())
            self._stored.add(folder)
        self._may_repeat = False

    def _store_missing(self, folder: str, file: PartitionFile) -> None:
        """Store the records that the folder does not have yet."""
        rest = file.without(self.lake.ids(folder, file.first, file.last))
        if rest is not None:
            content = rest.content()
            digest = blake2b(content, digest_size=6).hexdigest()
            self.lake.put(f"{folder}/{rest.first:015d}-{rest.last:015d}-again-{digest}.parquet", content)


def _name_of(span: Span) -> str:
    """The name of a file. Each partition of a store has a separate journal, in which the same positions occur again."""
    partition = f"-p{span.partition}" if span.partition else ""
    return f"{span.first:015d}-{span.last:015d}-{span.at}{partition}.parquet"


def _typed(key: str, text: str) -> str | bool | float:
    """The value of an argument of a file system. Time limits are numbers, and some arguments are true or false."""
    if text in {"true", "false"}:
        return text == "true"
    try:
        return float(text) if key.endswith("timeout") else text
    except ValueError:
        return text


def _secrets(options: ParquetOptions) -> list[str]:
    """The texts of the options that may be secret."""
    given = [(key, str(value)) for key, value in options.storage.items()]
    given += [("", each) for each in signatures(str(options.storage.get("sas_token", "")))]
    if options.url is not None:
        parts = urlsplit(str(options.url))
        given += [("", unquote(each)) for each in parts.netloc.rpartition("@")[0].split(":")]
        given += parse_qsl(parts.query)
    return [text for key, text in given if len(text) > 4 and not key.startswith(("region", "endpoint", "scheme"))]
