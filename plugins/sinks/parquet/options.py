"""The options of a parquet sink."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ingestd.api.errors import ConfigError
from ingestd.api.options import Options, PositiveDuration, PositiveSize, Secret, Size, Url

__all__ = ["ParquetOptions", "check_target"]


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
