"""The folder of a parquet sink, on the local disk or in object storage."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ingestd.api.errors import SinkRetry, reason_of
from ingestd.api.events import Record
from ingestd.support.durable_files import make_folders, sync
from ingestd.support.masking import mask

from ..azure import as_query
from .rows import REPLACED, ROW_GROUP_SIZE, SCHEMA, PartitionFile, conform, with_changes, without_ids

__all__ = ["Folder", "Lake", "LocalFolder", "Merged", "ObjectFolder"]

_OBJECT_STORES = (fs.S3FileSystem, fs.GcsFileSystem, fs.AzureFileSystem)
_DATE = re.compile(r"date=\d{4}-\d\d-\d\d")
_NAME = re.compile(r"(\d+)-(\d+)-([^/]*)\.parquet")
_LEFT_BY_MERGE = re.compile(r"\.\d+-\d+-merged-[^/]*\.parquet\.part")
_ROWS = 10_000  # of a file that are read at once, at most
_PART_SIZE = 8 << 20  # bytes of these rows


_Found = TypeVar("_Found")


class LocalFolder:
    """A folder of the local disk. Paths are relative to it. All methods raise `OSError`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def connect(self) -> None:
        """Connect, or create the folder."""
        if not self._root.is_dir():
            self._root.mkdir()
            sync(self._root.parent)

    def check(self) -> None:
        """Raise the error that writing would raise, as far as it is known without writing."""
        place = self._root if self._root.exists() else self._root.parent
        if not place.is_dir():
            raise NotADirectoryError(f"{place} is not a folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(f"{place} cannot be written to")

    def put(self, path: str, content: pa.Buffer | bytes) -> None:
        """Store a file durably, whole or not at all. It replaces a file with this name."""
        whole = self._root / path
        if not self._root.is_dir():  # perhaps its disk is not mounted
            raise FileNotFoundError(f"{self._root} has gone")
        make_folders(whole.parent)
        part = whole.with_name(f".{whole.name}.part")
        try:
            # Other users of the machine must not read events of customers. The umask may take more away.
            with open(part, "wb", opener=lambda path, flags: os.open(path, flags, 0o640)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.rename(whole)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        sync(whole.parent)

    def names(self, folder: str) -> Mapping[str, int]:
        """The names in a folder with sizes in bytes, none if the folder does not exist."""
        found: dict[str, int] = {}
        try:
            entries = [*os.scandir(self._root / folder)]
        except FileNotFoundError:
            return found
        for entry in entries:
            with suppress(FileNotFoundError):  # removed meanwhile, such as by a compaction
                found[entry.name] = entry.stat().st_size
        return found

    def open(self, path: str) -> Any:
        """A file for reading."""
        return pa.OSFile(str(self._root / path))

    def remove(self, path: str) -> None:
        (self._root / path).unlink()  # if a power cut undoes that, the next compaction finds the file again

    def lock(self) -> AbstractContextManager[Any]:
        """Keep others from merging until the exit. The process's end is one, too."""
        opened = ExitStack()
        descriptor = os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            opened.close()
            raise BlockingIOError("another compaction runs") from None
        return opened


class ObjectFolder:
    """The same in object storage, or in another file system of pyarrow or fsspec."""

    def __init__(self, url: str, arguments: dict[str, Any]) -> None:
        self._url = url
        self._arguments = arguments
        self._system: fs.FileSystem | None = None
        self._root = ""

    def connect(self) -> None:
        if self._system is None:
            try:
                self._system, self._root = _file_system(self._url, self._arguments)
            except (TypeError, ImportError) as error:  # an argument or a package that the file system does not know
                raise ValueError(f"the file system cannot be used: {error}") from error
        self._check_bucket()

    check = connect

    def _check_bucket(self) -> None:
        """Raise `FileNotFoundError` for a missing bucket, which looks like an empty folder otherwise."""
        if not isinstance(self._system, _OBJECT_STORES) or self.names(""):
            return
        bucket = self._root.partition("/")[0]
        try:
            kind = self._system.get_file_info(bucket).type
        except OSError:  # a user with rights to the folder only may not ask for the bucket
            return
        if kind is fs.FileType.NotFound:
            raise FileNotFoundError(f"there is no bucket {bucket}")

    def put(self, path: str, content: pa.Buffer | bytes) -> None:
        assert self._system is not None
        whole = part = f"{self._root}/{path}"
        is_atomic = isinstance(self._system, _OBJECT_STORES)
        if not is_atomic:
            folder, _, name = whole.rpartition("/")
            part = f"{folder}/.{name}.part"
            self._system.create_dir(folder, recursive=True)
        with self._system.open_output_stream(part) as stream:
            stream.write(content)
        if not is_atomic:
            self._system.move(part, whole)

    def names(self, folder: str) -> Mapping[str, int]:
        assert self._system is not None
        selector = fs.FileSelector(f"{self._root}/{folder}".rstrip("/"), allow_not_found=True)
        return {info.base_name: info.size or 0 for info in self._system.get_file_info(selector)}

    def remove(self, path: str) -> None:
        assert self._system is not None
        self._system.delete_file(f"{self._root}/{path}")

    def lock(self) -> AbstractContextManager[Any]:
        return nullcontext()  # it has no locks

    def open(self, path: str) -> Any:
        assert self._system is not None
        return self._system.open_input_file(f"{self._root}/{path}")


Folder = LocalFolder | ObjectFolder

Change = Callable[[Record], bytes | None]
"""Returns the new body of a record, or None for a record that stays."""


class Merged(NamedTuple):
    name: str
    size: int
    """Bytes."""
    changed: int
    """The number of its records that were changed."""


class Lake:
    """The files of a sink, in folders such as `type=event/date=2026-11-21`. All methods may block.

    Every failure is one of the sink, because the records are in the files already.
    """

    def __init__(self, folder: Folder, hidden: Collection[str]) -> None:
        self._folder = folder
        self._hidden = dict.fromkeys(hidden, "***")
        """Texts that no message may contain."""

    def open(self) -> None:
        pa.array([None])  # the first array imports pandas where it is installed, for which the event loop would wait
        with self._told():
            self._folder.connect()
            self._check_schema()

    def check(self) -> None:
        with self._told():
            self._folder.check()
            self._check_schema()

    def put(self, path: str, content: pa.Buffer | bytes) -> None:
        with self._told():
            self._folder.put(path, content)

    def ids(self, folder: str, first: int, last: int) -> set[str]:
        """The ids of the records in this folder with positions between these two, and perhaps of others."""

        def read(name: str) -> list[str]:
            match = _NAME.fullmatch(name)
            # The names of files that others have made, such as by compaction, say nothing.
            if match is not None and (int(match[1]) > last or int(match[2]) < first):
                return []
            with self._opened(f"{folder}/{name}") as file:
                return pq.read_table(file, columns=["id"])["id"].to_pylist()  # type: ignore[no-any-return]

        with self._told():
            return {*self._read_files(folder, read)}

    def received(self, begin: int, end: int) -> Iterator[tuple[str, int]]:
        """The id and the time of receipt of each record received in this time, in milliseconds."""
        for folder in self.folders():
            day = datetime.fromisoformat(f"{folder.partition('date=')[2]}T00:00:00+00:00").timestamp() * 1000
            if day < end and day + 86_400_000 > begin:
                with self._told():
                    tables = self._read_files(folder, partial(self._received, folder, begin, end))
                for batch in (each for table in tables for each in table.to_batches(_ROWS)):
                    yield from zip(batch["id"].to_pylist(), batch["at"].to_pylist(), strict=True)

    def _received(self, folder: str, begin: int, end: int, name: str) -> list[pa.Table]:
        with self._opened(f"{folder}/{name}") as file:
            table = pq.read_table(file, columns=["id", "received_at"])
            times = table["received_at"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
            chosen = pc.and_(pc.greater_equal(times, begin), pc.less(times, end))
            return [pa.table({"id": table["id"], "at": times}).filter(chosen)]

    def _read_files(self, folder: str, read: Callable[[str], list[_Found]]) -> list[_Found]:
        """All that `read` finds in the files of a folder. It begins again if a compaction has removed one."""
        files = self._files(folder)
        try:
            return [each for name in files for each in read(name)]
        except FileNotFoundError:
            if self._files(folder) == files:
                raise
            return self._read_files(folder, read)

    def is_merged(self, folder: str, first: int, last: int) -> bool:
        """Whether a tool has merged files that may have records of these positions."""
        with self._told():
            matches = [_NAME.fullmatch(name) for name in self._files(folder)]
        return any(
            match is None or (match[3].startswith("merged-") and int(match[1]) <= last and int(match[2]) >= first)
            for match in matches
        )

    def folders(self) -> list[str]:
        """The folders of all types and dates."""
        with self._told():
            return [
                f"{type_}/{date}"
                for type_ in sorted(self._folder.names(""))
                if type_.startswith("type=")
                for date in sorted(self._folder.names(type_))
                if _DATE.fullmatch(date)
            ]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes files meanwhile. Raises `SinkRetry` if somebody does."""
        with self._told():
            lock = self._folder.lock()
        with lock:
            yield

    def files(self, folder: str) -> Mapping[str, int]:
        """The files in a folder, with their sizes in bytes."""
        with self._told():
            return self._files(folder)

    def tables(self, folder: str, name: str) -> Iterator[pa.Table]:
        """The records of a file, in parts of a few megabytes."""
        with self._told(), self._opened(f"{folder}/{name}") as opened:
            file = pq.ParquetFile(opened)
            size = sum(file.metadata.row_group(each).total_byte_size for each in range(file.num_row_groups))
            rows = file.metadata.num_rows * _PART_SIZE // (size + 1)
            for batch in file.iter_batches(max(1, min(rows, _ROWS))):
                yield conform(pa.Table.from_batches([batch]), folder)

    def would_change(self, folder: str, name: str, change: Change) -> bool:
        """Whether a function changes a record of a file."""
        return any(with_changes(table, change)[1] for table in self.tables(folder, name))

    def merge(self, folder: str, files: Mapping[str, int], change: Change | None) -> Merged:
        """Replace files, given with their sizes, by a single one."""
        merged, changed = PartitionFile(), 0
        ids: set[str] = set()
        waiting: list[pa.Table] = []  # readers are slow in files of many small row groups
        for name in files:
            for table in self.tables(folder, name):
                once = without_ids(table, ids)  # two compactions of one bucket may have merged the same file
                more, count = (once, 0) if change is None else with_changes(once, change)
                changed += count
                ids.update(more["id"].to_pylist())
                waiting.append(more)
                if sum(each.nbytes for each in waiting) >= ROW_GROUP_SIZE:
                    merged.add(pa.concat_tables(waiting))
                    waiting.clear()
        if waiting:
            merged.add(pa.concat_tables(waiting))
        content = merged.content(replaced=files)
        digest = blake2b(content, digest_size=6).hexdigest()
        name = f"{merged.first:015d}-{merged.last:015d}-merged-{digest}.parquet"
        self.put(f"{folder}/{name}", content)
        for each in files:
            self.remove(folder, each)
        return Merged(name, content.size, changed)

    def remove_leftovers(self, folder: str) -> None:
        """Remove what a compaction has left that was killed: a part of a file, and files that a merged one replaces."""
        with self._told():
            names = [name for name in self._folder.names(folder) if _LEFT_BY_MERGE.fullmatch(name)]
        files = self.files(folder)
        if len(files) > 1:
            for name in files:
                replaced = self._replaced_by(folder, name)
                names += [each for each, size in replaced.items() if files.get(each) == size]
        for name in dict.fromkeys(names):
            self.remove(folder, name)

    def _replaced_by(self, folder: str, name: str) -> Mapping[str, int]:
        """The files that a merged file replaces, with their sizes."""
        if "-merged-" not in name:
            return {}
        with self._told(), self._opened(f"{folder}/{name}") as file:
            found = (pq.read_metadata(file).metadata or {}).get(REPLACED.encode())
        return {} if found is None else msgspec.json.decode(found, type=dict[str, int])

    def get(self, path: str) -> bytes | None:
        """The content of a file in the folder itself, or None if there is no such file."""
        with self._told():
            if path not in self._folder.names(""):
                return None
            with self._folder.open(path) as file:
                return bytes(file.read())

    def remove(self, folder: str, name: str) -> None:
        """Remove a file, unless somebody else has done so."""
        with self._told(), suppress(FileNotFoundError):
            self._folder.remove(f"{folder}/{name}")

    def _files(self, folder: str) -> Mapping[str, int]:
        return {
            name: size
            for name, size in sorted(self._folder.names(folder).items())
            if name.endswith(".parquet") and name[0] not in "._"
        }

    def _check_schema(self) -> None:
        """Compare the newest file of each type. Readers cannot read files of different schemas together."""
        for type_ in sorted(name for name in self._folder.names("") if name.startswith("type=")):
            dates = sorted(name for name in self._folder.names(type_) if name.startswith("date="))
            files = [*self._files(f"{type_}/{dates[-1]}")] if dates else []
            if files:
                path = f"{type_}/{dates[-1]}/{files[-1]}"
                with suppress(FileNotFoundError), self._opened(path) as file:  # a compaction may have removed it
                    _compare(path, pq.read_schema(file))

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        try:
            with self._folder.open(path) as file:
                yield file
        except (pa.ArrowException, KeyError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors as `SinkRetry`, without secrets."""
        try:
            yield
        except (OSError, pa.ArrowException, ValueError) as error:
            raise SinkRetry(mask(reason_of(error), self._hidden)) from None


def _compare(path: str, found: pa.Schema) -> None:
    for field in SCHEMA:
        index = found.get_field_index(field.name)
        if index < 0:
            if field.name in _OF_FOLDER:  # files of earlier versions have them in the name of the folder only
                continue
            raise ValueError(f"{path} has no column {field.name}, so it is not of this sink; move it away")
        if _kind(found.field(index).type) not in {_kind(field.type), *_OF_FOLDER.get(field.name, ())}:
            raise ValueError(
                f"the column {field.name} of {path} is {found.field(index).type}, and the sink writes {field.type};"
                " move the files away, or give the sink another folder"
            )


_OF_FOLDER = {"type": (), "date": ("date",)}


def _kind(type_: pa.DataType) -> str:
    """What a type means, however it is stored: tools that merge files store the same values in other ways."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return _kind(type_.value_type)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "text"
    if pa.types.is_timestamp(type_):  # in any unit and zone: an instant is the same
        return "time"
    if pa.types.is_date(type_):
        return "date"
    return "number" if pa.types.is_integer(type_) else str(type_)


def _file_system(url: str, arguments: dict[str, Any]) -> tuple[fs.FileSystem, str]:
    """The file system of a URL, and the path of the folder in it."""
    scheme, _, rest = url.partition("://")
    if not arguments:
        try:
            system, root = fs.FileSystem.from_uri(url)
        except pa.ArrowInvalid:  # not a scheme of pyarrow
            pass
        else:
            return system, root.rstrip("/")
    kind = {"s3": fs.S3FileSystem, "gs": fs.GcsFileSystem, "gcs": fs.GcsFileSystem}.get(scheme)
    if kind is not None:
        return kind(**arguments), rest.rstrip("/")
    if scheme in {"abfs", "abfss"}:
        container, _, path = rest.partition("/")
        if "sas_token" in arguments:
            arguments = {**arguments, "sas_token": as_query(arguments["sas_token"])}
        return fs.AzureFileSystem(**arguments), f"{container.partition('@')[0]}/{path}".rstrip("/")
    import fsspec

    return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme, **arguments))), rest.rstrip("/")
