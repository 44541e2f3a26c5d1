"""Renewals of expiry times go to a log, and hold from then on, for every reader and after any crash."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from ingestd.plugins.stores.cache import Loaded
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.plugins.stores.sqlite.batch import read_rows
from ingestd.plugins.stores.sqlite.ttl_log import TtlLog, read_log, renewed
from tests.support.journals import until

HOUR = 3_600_000
DAY = 24 * HOUR


@asynccontextmanager
async def opened(folder: Path, *, cache: int = 1000, serving: bool = True) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(folder / "ingestd.db", cache=cache, busy_timeout=1.0)
    await backend.open(serving=serving)
    try:
        yield backend
    finally:
        await backend.close()


async def renew(backend: SqliteBackend, keys: Sequence[str], now: int, ttl: int = HOUR) -> None:
    state = backend.store.begin(now)
    for key in keys:
        await state.renew(key, "x", ttl)
    await backend.store.commit(state)


async def begin(backend: SqliteBackend, keys: Sequence[str], now: int, ttl: int = HOUR) -> None:
    """Write the entries into rows. A renewal of a new entry would begin it in the log."""
    state = backend.store.begin(now)
    for key in keys:
        await state.put(key, "x", ttl)
    await backend.store.commit(state)


async def fold(backend: SqliteBackend) -> None:
    """Write all entries of the log into rows: its older half, and then its younger half."""
    assert backend.write_back is not None
    for _ in range(2):
        await backend.write_back.compact()


def ask(folder: Path, question: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "ingestd.db")) as other:
        return other.execute(question).fetchall()


def ends(folder: Path) -> set[int]:
    return {end for (end,) in ask(folder, "SELECT expires FROM state")}


def logged(folder: Path) -> int:
    count: int = ask(folder, "SELECT count(*) FROM renewal")[0][0]
    return count


async def test_renewals_change_no_rows_until_the_log_is_compacted(tmp_path: Path) -> None:
    keys = [f"key {number}" for number in range(1000)]
    async with opened(tmp_path) as backend:
        await begin(backend, keys, 1000)
        assert (ends(tmp_path), logged(tmp_path)) == ({1000 + HOUR}, 0)
        await renew(backend, keys, 2000)
        assert (ends(tmp_path), logged(tmp_path)) == ({1000 + HOUR}, 1)
        await fold(backend)
        assert (ends(tmp_path), logged(tmp_path)) == ({2000 + HOUR}, 0)
        await renew(backend, keys, 3000)
        assert (ends(tmp_path), logged(tmp_path)) == ({2000 + HOUR}, 1)


async def test_an_entry_gets_its_row_only_after_its_last_renewal(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        assert backend.write_back is not None
        await begin(backend, ["goes on", "ends"], 0)
        for now in (1000, 2000, 3000):
            await renew(backend, ["goes on"], now)
            if now == 1000:
                await renew(backend, ["ends"], now)
            await backend.write_back.compact()
        rows = dict(ask(tmp_path, "SELECT key, expires FROM state"))
        assert rows == {"goes on": HOUR, "ends": 1000 + HOUR}
        assert logged(tmp_path) == 1  # the last renewal


async def test_a_long_log_is_compacted_without_a_request(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        for part in ("first", "second"):
            keys = [f"{part} {number}" for number in range(1000)]
            await begin(backend, keys, 1000)
            for turn in range(1, 26):
                await renew(backend, keys, 1000 + turn)
            await until(lambda: not backend.database.renewals.logged)  # it is in the older half
        assert logged(tmp_path) == 25
        first = ask(tmp_path, "SELECT DISTINCT expires FROM state WHERE key LIKE 'first%'")
        assert first == [(1025 + HOUR,)]


async def test_an_old_log_is_compacted_without_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.stores.sqlite.writeback._AGE", 1)
    async with opened(tmp_path) as backend:
        await begin(backend, ["key"], 1000)
        await renew(backend, ["key"], 2000)
        assert (ends(tmp_path), logged(tmp_path)) == ({1000 + HOUR}, 1)
        await until(lambda: logged(tmp_path) == 0)
        assert ends(tmp_path) == {2000 + HOUR}


def left_by_a_kill(folder: Path, keys: Sequence[str]) -> dict[str, int | None]:
    """The expiry times of these keys as a start would find them now."""
    with closing(sqlite3.connect(folder / "ingestd.db")) as other:
        other.execute("BEGIN")
        rows, renewals = read_rows(other, keys), TtlLog(*read_log(other)).of(keys)
    return {row[0]: row[3] for row in renewed(rows, renewals)}


async def test_a_kill_during_a_compaction_loses_no_renewal(tmp_path: Path) -> None:
    keys = [f"key {number}" for number in range(3000)]
    ends: dict[str, int] = {}
    async with opened(tmp_path) as backend:
        await renew(backend, keys, 0)
        turns = 0

        async def go_on(own: Sequence[str]) -> None:
            for now, key in enumerate(cycle(own), 1):
                await renew(backend, [key], now)
                ends[key] = now + HOUR
                if turns > 5 and now >= len(own):
                    return

        customers = asyncio.gather(*(go_on(keys[first::4]) for first in range(4)))
        while not customers.done():
            await asyncio.sleep(0)
            await fold(backend)
            expected = dict(ends)
            found = left_by_a_kill(tmp_path, [*expected])
            assert {key: end for key, end in found.items() if (end or 0) < expected[key]} == {}
            turns += 1
        await customers


async def test_a_deletion_affects_no_renewals_of_other_keys(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        assert backend.write_back is not None
        await renew(backend, ["kept", "deleted", "later"], 0)
        await renew(backend, ["kept"], 1000)
        await renew(backend, ["deleted"], 2000)
        await backend.write_back.compact()
        state = backend.store.begin(3000)
        await state.delete("deleted")
        await backend.store.commit(state)
        await renew(backend, ["later"], 4000)
        await backend.write_back.compact()
        assert left_by_a_kill(tmp_path, ["kept", "later"]) == {"kept": 1000 + HOUR, "later": 4000 + HOUR}


async def test_renewals_hold_after_an_eviction_from_the_cache(tmp_path: Path) -> None:
    async with opened(tmp_path, cache=1) as backend:
        for now in (1000, HOUR, 2 * HOUR):
            await renew(backend, ["key"], now)
            await backend.store.begin(now).get("another")
        assert await backend.store.begin(3 * HOUR).get("key") == "x"
        assert await backend.store.begin(3 * HOUR + 1).get("key") is None


async def test_renewals_hold_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        for now in (1000, HOUR, 2 * HOUR):
            await renew(backend, ["key"], now)
    async with opened(tmp_path) as backend:
        assert await backend.store.begin(3 * HOUR).get("key") == "x"
        await fold(backend)
    assert (ends(tmp_path), logged(tmp_path)) == ({3 * HOUR}, 0)


async def test_a_command_beside_the_daemon_sees_renewals(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        await renew(backend, ["key"], 1000)
        await renew(backend, ["key"], HOUR)
        async with opened(tmp_path, serving=False) as command:
            assert await command.store.begin(2 * HOUR).get("key") == "x"
            assert await command.store.begin(2 * HOUR + 1).get("key") is None


async def test_a_renewal_does_not_apply_to_a_later_value(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        await renew(backend, ["key"], 1000)
        await renew(backend, ["key"], 5000)
        for value, ttl in (("y", HOUR), ("x", 10)):
            state = backend.store.begin(6000)
            await state.put("key", value, ttl)
            await backend.store.commit(state)
    async with opened(tmp_path) as backend:
        assert await backend.store.begin(6010).get("key") == "x"
        assert await backend.store.begin(6011).get("key") is None
        await fold(backend)
    assert ends(tmp_path) == {6010}


async def test_the_sweep_keeps_a_renewed_entry_whose_row_has_expired(tmp_path: Path) -> None:
    async with opened(tmp_path, cache=1) as backend:
        await renew(backend, ["key"], 1000, 2 * DAY)
        await renew(backend, ["key"], 2 * DAY, 2 * DAY)
        state = backend.store.begin(4 * DAY)
        await state.put("sign", "x", -3 * DAY)  # its removal shows that the sweep has run
        await backend.store.commit(state)
        await until(lambda: ask(tmp_path, "SELECT count(*) FROM state WHERE key = 'sign'") == [(0,)])
        assert await backend.store.begin(4 * DAY).get("key") == "x"


async def test_an_expired_value_that_is_put_again_gets_a_new_row(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        await begin(backend, ["key"], 1000)
        await begin(backend, ["key"], 1000 + 2 * HOUR)
    assert (ends(tmp_path), logged(tmp_path)) == ({1000 + 3 * HOUR}, 0)


async def test_an_entry_begun_in_the_log_gets_its_row_after_its_last_renewal(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        assert backend.write_back is not None
        await renew(backend, ["goes on", "ends"], 0)
        assert (ends(tmp_path), logged(tmp_path)) == (set(), 1)
        await backend.write_back.compact()
        await renew(backend, ["goes on"], 1000)
        await backend.write_back.compact()
        assert ask(tmp_path, "SELECT key, value, expires FROM state") == [("ends", "x", HOUR)]


@pytest.mark.parametrize("folds", [0, 1, 2])
@pytest.mark.parametrize("again", [False, True])
async def test_an_entry_begun_in_the_log_is_found_at_every_stage(tmp_path: Path, folds: int, again: bool) -> None:
    async def values(backend: SqliteBackend) -> list[tuple[str, str]]:
        return sorted([entry async for entry in backend.store.scan("session")])

    async with opened(tmp_path, cache=1) as backend:
        state = backend.store.begin(0)
        await state.put("session:over", "another", 10)
        await backend.store.commit(state)
        await renew(backend, ["session:over", "session:new", "other:kind"], HOUR)
        await backend.database.presence.remake()
        assert backend.write_back is not None
        for _ in range(folds):
            await backend.write_back.compact()
        if again:
            await renew(backend, ["session:over", "session:new"], HOUR + 1)
        end = 2 * HOUR + again
        async with opened(tmp_path, serving=False) as command:
            assert await values(command) == [("session:new", "x"), ("session:over", "x")]
            for key in ("session:over", "session:new"):
                assert await command.store.begin(end).get(key) == "x"
                assert await command.store.begin(end + 1).get(key) is None
        for _ in range(2):
            assert await values(backend) == [("session:new", "x"), ("session:over", "x")]
            for key in ("session:over", "session:new"):
                assert await backend.store.begin(end).get(key) == "x"
                assert await backend.store.begin(end + 1).get(key) is None
            await backend.close()  # the second time after a restart
            await backend.open(serving=True)


async def test_a_value_written_during_a_compaction_is_kept(tmp_path: Path) -> None:
    go_on = threading.Event()

    def hold_up(_: sqlite3.Connection) -> None:
        assert go_on.wait(30)

    async with opened(tmp_path) as backend:
        assert backend.write_back is not None
        await renew(backend, ["key"], 0)
        await backend.write_back.compact()
        state = backend.store.begin(1000)
        await state.put("key", "y", HOUR)
        commits = backend.database.commits
        assert commits is not None
        changed = asyncio.create_task(commits.commit(state, first=hold_up))
        await until(lambda: not any(entry.dirty for entry in state.seen))
        folded = asyncio.create_task(backend.write_back.compact())  # it has read the older value
        await until(lambda: bool(commits._gathering))
        go_on.set()
        await asyncio.gather(changed, folded)
        assert ask(tmp_path, "SELECT key, value, expires FROM state") == [("key", "y", 1000 + HOUR)]


async def test_with_a_full_log_a_new_entry_gets_its_row_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.stores.sqlite.ttl_log._MOST", 100)
    async with opened(tmp_path) as backend:
        await renew(backend, [f"first {number}" for number in range(100)], 0)
        await renew(backend, ["second"], 0)
        assert ask(tmp_path, "SELECT key FROM state") == [("second",)]
        await renew(backend, ["second"], 1000)
        await fold(backend)
        assert dict(ask(tmp_path, "SELECT expires, count(*) FROM state GROUP BY expires")) == {
            HOUR: 100,
            1000 + HOUR: 1,
        }


async def test_no_bytes_of_a_deleted_key_are_left_after_some_seconds(tmp_path: Path) -> None:
    def is_there() -> bool:
        return any(b"of one person" in path.read_bytes() for path in tmp_path.iterdir())

    async with opened(tmp_path) as backend:
        for now in (1000, 2000):
            await renew(backend, ["of one person"], now)
        assert is_there()
        state = backend.store.begin(3000)
        await state.delete("of one person")
        await backend.store.commit(state)
        await until(lambda: not is_there())


async def test_a_deletion_removes_all_versions_of_a_key_from_the_log_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as backend:
        for now in (1000, 2000):
            await renew(backend, ["kept", "private"], now)
        state = backend.store.begin(3000)
        await state.put("private", "y", HOUR)  # so that the log has a different value
        await backend.store.commit(state)
        await renew(backend, ["kept"], 4000)
        state = backend.store.begin(5000)
        await state.delete("private")
        await backend.store.commit(state)
        texts = [text for (text,) in ask(tmp_path, "SELECT entries FROM renewal")]
        assert not any("private" in str(text) for text in texts)
        await renew(backend, ["private"], 6000)
        await fold(backend)
        found = ask(tmp_path, "SELECT key, value, expires FROM state ORDER BY key")
        assert found == [("kept", "x", 4000 + HOUR), ("private", "x", 6000 + HOUR)]
        assert logged(tmp_path) == 0


async def test_missing_entries_of_one_visitor_are_read_together(tmp_path: Path) -> None:
    asked: list[set[str]] = []
    async with opened(tmp_path) as backend:
        load = backend.database.entries._load_rows

        def watched(keys: Sequence[str], loaded: Loaded) -> None:
            asked.append({*keys})
            load(keys, loaded)

        backend.database.entries._load_rows = watched
        for visitor in ("1", "2"):
            state = backend.store.begin(1000)
            await state.get(f"link:{visitor}")
            await state.renew(f"session:{visitor}", "x", HOUR)
            await backend.store.commit(state)
        assert asked == [{"link:1"}, {"session:1"}, {"link:2", "session:2"}]
