"""Attribution with the state on Redis and the journal in a file.

The tests of drawn journals and of bounds run on SQLite and on Redis only. This arrangement has the state of the one and
the journal of the other. Only its steps differ, which the tests of kills, lag and replays interrupt and repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from ingestd.api.backend import Backend
from ingestd.plugins.stores.sqlite import SqliteBackend
from tests.integration import test_attribution_bounds, test_attribution_refunds, test_redis_attribution
from tests.integration.test_redis_attribution import arranged, on_redis
from tests.support.apart import Apart
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

globals().update(
    {
        name: each
        for name, each in vars(test_redis_attribution).items()
        if name.startswith("test_")
        and callable(each)
        and not is_hypothesis_test(each)
        and each.__module__ not in {test_attribution_bounds.__name__, test_attribution_refunds.__name__}
    }
)


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
