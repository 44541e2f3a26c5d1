"""What a daemon drops from its memory after an erasure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ingestd.api import times
from ingestd.api.errors import Unavailable
from ingestd.api.store import State
from ingestd.consumers.erasures import note_erasure
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.daemon.forgotten import Forgotten
from ingestd.http.operators import OperatorsPart
from ingestd.support.periodic import TIMING
from tests.support.backends import sqlite_backend


@pytest.mark.parametrize("was_away", [False, True])
async def test_the_first_erasure_that_a_daemon_sees_is_new_if_the_store_was_away_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_away: bool
) -> None:
    """Consumers may have read records of the person before it, once the store was back."""
    monkeypatch.setattr(TIMING, "erasures", 0.01)
    looks: list[int] = []
    forgot: list[str] = []
    enough = asyncio.Event()

    class Page(OperatorsPart):
        def forget(self) -> None:
            forgot.append("all")

    async with sqlite_backend(tmp_path) as backend:
        begin = backend.store.begin

        def begin_later(now: int) -> State:
            looks.append(now)
            if len(looks) == 5:
                enough.set()
            if was_away and len(looks) <= 2:
                raise Unavailable("It is away.")
            return begin(now)

        state = begin(times.now())
        await note_erasure(state, "blanked")
        await backend.store.commit(state)
        monkeypatch.setattr(backend.store, "begin", begin_later)
        consumers = PartitionConsumers(backend.partitions, [], died=print)
        following = asyncio.create_task(Forgotten(backend.partitions, consumers, [Page()]).follow())
        await enough.wait()
        following.cancel()
        await asyncio.wait([following])
    assert forgot == (["all"] if was_away else [])
