"""A shop whose store has several partitions, for the installed command in subprocesses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from ingestd.storage.placements import index_of_tenant

from . import partitioned_backend
from .daemon import Key, Shop
from .distribution import write_distribution
from .partitioned_backend import away_file, part_file

__all__ = ["PARTITIONS", "PartitionedShop", "partitions_installed", "tenant_in"]

PARTITIONS = 3


def tenant_in(index: int, number: int = 0, partitions: int = PARTITIONS) -> str:
    """The tenant with this number among the tenants of a partition."""
    names = (f"shop-{each}" for each in count())
    found = (name for name in names if index_of_tenant(name, partitions) == index)
    for _ in range(number):
        next(found)
    return next(found)


@contextmanager
def partitions_installed(folder: Path, modules: dict[str, str] | None = None) -> Iterator[None]:
    """Daemons and commands that are started inside the block find the back end `files`.

    `modules` are further plugins: the source of each module by its name, which is also the name of the plugin.
    """
    further = modules or {}
    own = {"files_backend": Path(partitioned_backend.__file__).read_text()}
    plugins = {"files": "files_backend:FilesPlugin", **{name: name for name in further}}
    site = write_distribution(folder, "files-backend", modules=own | further, plugins=plugins)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        yield


_made: dict[tuple[str, ...], tuple[bytes, dict[str, Key]]] = {}
"""The file of the first partition with the keys of these tenants. It is made once and copied, as `Shop` does."""


@dataclass
class PartitionedShop(Shop):
    """A `Shop` over several partitions. `keys` are public keys, and `server_keys` server keys: one tenant a partition.

    The block of `partitions_installed` must surround its use.
    """

    partitions: int = field(default=PARTITIONS, kw_only=True)

    def __post_init__(self) -> None:
        self.tenants = [tenant_in(index, partitions=self.partitions) for index in range(self.partitions)]
        self.tenant = self.tenants[0]
        super().__post_init__()
        url = f'"files:{self.partitions}:shop.db"'
        self.config.write_text(self.config.read_text().replace('"sqlite:ingestd.db"', url))
        self.path = self.folder / "shop.db"
        self.database = self.database.rename(part_file(self.path, 0))
        self.keys: dict[str, Key] = {self.tenant: self.public}
        made = _made.get((*self.tenants,))
        if made is None:
            self.keys |= {tenant: self.create_key("public", tenant) for tenant in self.tenants[1:]}
            _made[*self.tenants,] = self.database.read_bytes(), self.keys
        else:
            self.database.write_bytes(made[0])
            self.keys |= made[1]

    def file(self, index: int) -> Path:
        """The file of a partition."""
        return part_file(self.path, index)

    @contextmanager
    def away(self, *indices: int) -> Iterator[None]:
        """Processes that are started inside the block cannot reach these partitions."""
        for index in indices:
            away_file(self.path, index).touch()
        yield
        for index in indices:
            away_file(self.path, index).unlink()

    def is_done(self, *consumers: str) -> bool:
        """Whether these consumers have durably processed all records of all partitions."""
        with ExitStack() as stack:
            for index in range(self.partitions):
                path = f"file:{self.file(index)}?mode=ro"
                journal = stack.enter_context(closing(sqlite3.connect(path, uri=True)))
                rows = journal.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchall()
                last = rows[0][0] if rows else 0
                positions = dict(journal.execute("SELECT name, position FROM cursors").fetchall())
                if any(positions.get(name, 0) < last for name in consumers):
                    return False
        return True
