"""The upgrade of a SQLite file that an earlier version has written: by a daemon or by command, whole or not at all."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sqlite3
import stat
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ingestd.api.errors import CommandError, Unavailable, UpgradeNeeded
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.plugins.stores.sqlite.connection import MIGRATIONS
from ingestd.plugins.stores.sqlite.files import acquire
from ingestd.plugins.stores.sqlite.upgrade import upgrade
from tests.support.disks import small_disk

NEWEST = len(MIGRATIONS)


def write_old(path: Path, *, version: int, records: int = 3, size: int = 100) -> None:
    """A file with the tables of a version, and records in its journal."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        steps = "\n".join(MIGRATIONS[:version])
        connection.executescript(f"BEGIN;\n{steps}\nPRAGMA user_version = {version};\nCOMMIT;")
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO journal (at, type, body) VALUES (?, 'event', ?)", ((at, bytes(size)) for at in range(records))
        )
        connection.execute("COMMIT")


def look(path: Path) -> tuple[int, int]:
    """The version of the tables, and the number of records, of a file that is whole."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (records,) = connection.execute("SELECT count(*) FROM journal").fetchone()
    return version, records


def names(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def backend(tmp_path: Path) -> SqliteBackend:
    return SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0)


@pytest.mark.parametrize("version", [1, NEWEST - 1])
async def test_a_daemon_keeps_a_copy_upgrades_once_and_tells(
    backend: SqliteBackend, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    write_old(backend.path, version=version)
    kept = backend.path.with_name("ingestd.db.before-upgrade")
    caplog.set_level(logging.INFO, "ingestd.sqlite")
    await backend.open(serving=True)
    assert len(await backend.journal.read(0, 10)) == 3
    assert next(each.text for each in await backend.describe() if each.name == "kept").startswith(f"{kept}, ")
    await backend.close()
    assert look(backend.path) == (NEWEST, 3)
    assert look(kept) == (version, 3)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    told = [record.getMessage() for record in caplog.records]
    assert f"tables of version {version}, not {NEWEST}" in told[0]
    assert f"upgraded from tables of version {version} to {NEWEST} in " in told[1]
    assert str(kept) in told[1]
    kept.unlink()
    await backend.open(serving=True)
    await backend.close()
    assert len(caplog.records) == 2
    assert names(backend.path.parent) == ["ingestd.db", "ingestd.db.lock"]


async def test_a_command_changes_nothing_and_says_who_upgrades(backend: SqliteBackend) -> None:
    write_old(backend.path, version=NEWEST - 1)
    before = backend.path.read_bytes()
    with pytest.raises(UpgradeNeeded, match="a daemon of this version upgrades it when it starts, and `ingestd store"):
        await backend.open(serving=False)
    lock = await acquire(backend.path, serving=True)  # as a daemon of the earlier version
    assert lock is not None
    with pytest.raises(UpgradeNeeded, match="the running daemon is of an earlier version"):
        await backend.open(serving=False)
    with pytest.raises(CommandError, match="a daemon has the file; stop it first"):
        await backend.upgrade(keep=True)
    lock.release()
    assert backend.path.read_bytes() == before
    assert names(backend.path.parent) == ["ingestd.db", "ingestd.db.lock"]
    await backend.back_up(backend.path.with_name("backup.db"))  # before an upgrade, with the new command
    assert look(backend.path.with_name("backup.db")) == (NEWEST - 1, 3)


async def test_the_command_upgrades_once_with_or_without_a_copy(backend: SqliteBackend) -> None:
    write_old(backend.path, version=1)
    done = await backend.upgrade(keep=False)
    assert done is not None
    assert "before-upgrade" not in done
    assert look(backend.path) == (NEWEST, 3)
    assert names(backend.path.parent) == ["ingestd.db", "ingestd.db.lock"]
    assert await backend.upgrade(keep=True) is None
    assert names(backend.path.parent) == ["ingestd.db", "ingestd.db.lock"]
    backend.path.unlink()
    with pytest.raises(CommandError, match="does not exist"):
        await backend.upgrade(keep=True)
    assert not backend.path.exists()


async def test_the_copy_of_an_earlier_upgrade_is_replaced(backend: SqliteBackend) -> None:
    write_old(backend.path, version=NEWEST - 1)
    backend.path.with_name("ingestd.db.before-upgrade").write_bytes(b"of an earlier upgrade")
    await backend.upgrade(keep=True)
    assert look(backend.path.with_name("ingestd.db.before-upgrade")) == (NEWEST - 1, 3)


async def test_without_room_for_the_copy_nothing_is_changed(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=70):
        backend = SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0)
        write_old(backend.path, version=NEWEST - 1, records=4, size=1 << 20)
        for serving in (True, False):
            with pytest.raises(
                Unavailable, match=r"keeps a copy of 4\.\d MiB beside it, but .* run `ingestd store upgr"
            ):
                await backend.open(serving=serving)
        assert look(backend.path)[0] == NEWEST - 1
        assert names(tmp_path) == ["ingestd.db", "ingestd.db.lock"]
        assert await backend.upgrade(keep=False)
        assert look(backend.path) == (NEWEST, 4)


def test_a_kill_at_any_moment_leaves_the_file_of_before_or_of_after(tmp_path: Path) -> None:
    original = tmp_path / "original.db"
    write_old(original, version=1, records=60_000)
    path = tmp_path / "ingestd.db"
    path.write_bytes(original.read_bytes())
    began = time.monotonic()
    upgrade(path, keep=True)
    whole = time.monotonic() - began
    left = set()
    for moment in range(8):
        for name in names(tmp_path):
            if name != original.name:
                (tmp_path / name).unlink()
        path.write_bytes(original.read_bytes())
        process = os.fork()
        if not process:
            upgrade(path, keep=True)
            os._exit(0)
        time.sleep(whole * (moment + random.random()) / 8)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        version, records = look(path)
        assert (version, records) in {(1, 60_000), (NEWEST, 60_000)}
        left.add(version)
        kept = tmp_path / "ingestd.db.before-upgrade"
        assert version == 1 or look(kept) == (1, 60_000)
        asyncio.run(_serve(path))
        assert look(path) == (NEWEST, 60_000)
        assert look(kept) == (1, 60_000)
        assert not [name for name in names(tmp_path) if "partial" in name]
    assert 1 in left, "some kills must come before the end"


async def _serve(path: Path) -> None:
    backend = SqliteBackend(path, cache=100, busy_timeout=1.0)
    await backend.open(serving=True)
    assert await backend.journal.last() == 60_000
    await backend.close()
