"""Attribution with the state on Redis and the journal in a file.

The tests of drawn journals and of single decisions run on SQLite and on Redis only. This arrangement has the state of
the one and the journal of the other. Only its steps differ, which the tests of kills, lag and replays interrupt and
repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from ingestd.api.backend import Backend
from ingestd.plugins.stores.sqlite import SqliteBackend
from tests.plugins.attribution import test_replay, test_rollups
from tests.plugins.attribution.test_redis import (
    arranged,
    on_redis,
    test_after_a_loss_of_the_state_the_journal_gives_the_same_bytes,
    test_redis_and_sqlite_give_the_same_bytes,
)
from tests.support.apart import Apart
from tests.support.redis_server import RedisServer, redis_server

__all__ = [
    "test_after_a_loss_of_the_state_the_journal_gives_the_same_bytes",
    "test_redis_and_sqlite_give_the_same_bytes",
]

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

for module in (test_replay, test_rollups):
    tests = {name: each for name, each in vars(module).items() if name.startswith("test_")}
    globals().update({name: each for name, each in tests.items() if not is_hypothesis_test(each)})


def apart(server: RedisServer, folder: Path) -> Backend:
    journal = SqliteBackend(folder / "journal.db", cache=1000, busy_timeout=1.0)
    return Apart(on_redis(server, folder), journal)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def arrangement(server: RedisServer) -> Iterator[None]:
    with arranged(server, apart):
        yield
