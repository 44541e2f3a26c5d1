"""Files of a lake: on the local disk they outlive a power failure, and in Azure they have the addresses of Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyiceberg.io import ADLS_ACCOUNT_NAME, ADLS_SAS_TOKEN
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from ingestd.support.durable_files import make_folders, sync

from ..azure import as_query

__all__ = ["DurableFileIO"]

_AZURE = ("abfs", "abfss", "wasb", "wasbs")


class DurableFileIO(PyArrowFileIO):
    """The files of pyiceberg, by pyarrow. A local one is on the disk before a commit can name it."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        return _LocalFile(output) if isinstance(output._filesystem, fs.LocalFileSystem) else output

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """As pyiceberg does, but `abfss://container@account.dfs.core.windows.net/path` is in the container."""
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        if scheme in _AZURE and "@" in netloc:
            path = netloc.partition("@")[0] + path.removeprefix(netloc)
        return scheme, netloc, path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> fs.FileSystem:
        if scheme not in _AZURE:
            return super()._initialize_fs(scheme, netloc)
        container, _, host = (netloc or "").partition("@")
        if host:
            self.properties.setdefault(ADLS_ACCOUNT_NAME, host.partition(".")[0])
        if token := self.properties.get(ADLS_SAS_TOKEN):
            self.properties[ADLS_SAS_TOKEN] = as_query(token)
        system = super()._initialize_fs(scheme, netloc)
        # Where credentials cannot be used, this call raises an error, but opening a file would end the process.
        system.get_file_info(fs.FileSelector(f"{container}/ingestd", allow_not_found=True))
        return system


class _LocalFile(PyArrowFile):
    def __init__(self, file: PyArrowFile) -> None:
        super().__init__(file.location, file._path, file._filesystem)

    def create(self, overwrite: bool = False) -> Any:
        path = Path(self._path)
        make_folders(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (0 if overwrite else os.O_EXCL), 0o640)
        return pa.PythonFile(_Synced(descriptor, path), "w")


class _Synced:
    def __init__(self, descriptor: int, path: Path) -> None:
        self._file = os.fdopen(descriptor, "wb", buffering=1 << 20)
        self._path = path
        self.write, self.tell, self.flush = self._file.write, self._file.tell, self._file.flush

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync(self._path.parent)
