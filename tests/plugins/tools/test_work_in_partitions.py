"""Commands for sinks over several partitions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.store import State
from ingestd.delivery.operator_commands import set_paused
from ingestd.plugins.stores.sqlite.store import SqliteStore
from ingestd.plugins.tools.sinks.partitions import in_each
from tests.support.partitioned_backend import PartitionedBackend


async def test_a_partition_that_takes_long_holds_up_the_work_in_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_there, commit = asyncio.Barrier(3), SqliteStore.commit

    async def commit_with_others(store: SqliteStore, state: State) -> None:
        await all_there.wait()
        await commit(store, state)

    async def pause(partition: Partition) -> bool:
        return await set_paused(partition.store, "crm", paused=True)

    backend = PartitionedBackend(tmp_path / "shop.db", 3)
    await backend.open(serving=True)
    try:
        monkeypatch.setattr(SqliteStore, "commit", commit_with_others)
        missing = MissingPartitions(backend.partitions)
        async with asyncio.timeout(60):
            assert await in_each(backend.partitions, missing, pause) == [True] * 3
            assert await in_each(backend.partitions, missing, pause) == [False] * 3
        assert not missing.reasons
    finally:
        await backend.close()
