"""`ingestd sinks pause|resume` over several partitions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ingestd.api.backend import MissingPartitions
from ingestd.api.store import State
from ingestd.plugins.stores.sqlite.store import SqliteStore
from ingestd.plugins.tools.sinks.pausing import set_in_all
from tests.support.partitioned_backend import PartitionedBackend


async def test_a_partition_that_takes_long_holds_up_the_pause_in_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_there, commit = asyncio.Barrier(3), SqliteStore.commit

    async def commit_with_others(store: SqliteStore, state: State) -> None:
        await all_there.wait()
        await commit(store, state)

    backend = PartitionedBackend(tmp_path / "shop.db", 3)
    await backend.open(serving=True)
    try:
        monkeypatch.setattr(SqliteStore, "commit", commit_with_others)
        missing = MissingPartitions(backend.partitions)
        async with asyncio.timeout(60):
            assert await set_in_all(backend.partitions, missing, "crm", paused=True)
            assert not await set_in_all(backend.partitions, missing, "crm", paused=True)
            assert await set_in_all(backend.partitions, missing, "crm", paused=False)
        assert not missing.reasons
    finally:
        await backend.close()
