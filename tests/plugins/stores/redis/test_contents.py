"""The walk over all entries on Redis: in parts for a large store, and without what is no entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.api import times
from ingestd.api.contents import Entry
from ingestd.api.store import state_key
from ingestd.plugins.stores.redis import contents as redis_contents
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.testing.contents import all_entries, sample_entries
from tests.support.redis_server import redis_server


async def test_a_large_store_is_walked_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_contents, "_SEEN", 50)
    wanted = [Entry(state_key("contract", "shop", f"{number}"), f"{number}") for number in range(500)]
    wanted += sample_entries(times.now())
    with redis_server(tmp_path / "redis", {"appendfsync": "no"}) as server:
        backend = RedisBackend(make_pool(server.url, (), timeout=2), prefix="a*b:", timeout=2, patience=5)
        other = RedisBackend(make_pool(server.url, (), timeout=2), prefix="a*b:c:", timeout=2, patience=5)
        await backend.open(serving=False)
        await other.open(serving=False)
        await backend.contents.replace(wanted)
        await other.contents.replace([Entry(state_key("contract", "shop", "other"), "of another ingestd")])
        assert await all_entries(backend.contents) == {entry.key: entry for entry in wanted}
        assert len(await all_entries(other.contents)) == 1
        await backend.close()
        await other.close()
