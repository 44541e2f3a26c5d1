"""The check results of a SQLite back end for `ingestd check`, within a bounded time."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingestd.api.check_result import CheckResult
from ingestd.api.events import Record
from ingestd.plugins.stores.sqlite import SqliteBackend, health
from tests.support.journals import append, read_all


async def described(backend: SqliteBackend) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in await backend.describe()}


async def test_a_large_file_is_checked_for_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0)
    await backend.open(serving=True)
    try:
        await append(backend, [Record("note", 1, b"x" * 1000) for _ in range(20_000)])
        assert (await described(backend))["whole"].facts == {"all": True}
        looks = count()
        clock = SimpleNamespace(monotonic=lambda: float(next(looks)))  # a second passes between two looks
        with monkeypatch.context() as patched:
            patched.setattr(health, "time", clock)
            whole = (await described(backend))["whole"]
        assert next(looks) == 4  # the check has ended at the first look after its two seconds
        assert (whole.status, whole.facts) == ("ok", {"all": False})
        assert "no fault in the first" in whole.text
        # The connection still works.
        assert len(await read_all(backend.journal)) == 20_000
    finally:
        await backend.close()


async def test_a_guest_names_the_daemon_of_the_file_and_tries_no_write(tmp_path: Path) -> None:
    owner, guest = (SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0) for _ in range(2))
    await owner.open(serving=True)
    try:
        await guest.open(serving=False)
        try:
            beside, alone = await described(guest), await described(owner)
        finally:
            await guest.close()
    finally:
        await owner.close()
    assert beside.keys() == alone.keys()
    assert isinstance(beside["daemon"].facts["pid"], int)
    assert beside["write"].text.startswith("not tried")
    assert alone["write"].text == "a trial write is on the disk"
