"""How `pytest --dist loadfile` divides the tests among its processes."""

from __future__ import annotations

import re

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

__all__ = ["WorkUnits", "put_long_ones_first"]

_BROWSER = re.compile(r"(tests/acceptance/browser_client)/.*\[(chromium|firefox)\b")

_LONG = (
    "tests/integration/test_redis_attribution.py", "tests/integration/test_kafka.py",
    "tests/integration/test_kafka_troubles.py", "tests/integration/test_parquet_troubles.py",
    "tests/integration/test_parquet.py", "tests/integration/test_redis_cluster_attribution.py",
    "tests/acceptance/test_packaging.py", "tests/acceptance/test_openapi.py",
)  # fmt: skip
"""Files that take more than a minute, and would begin late. A process could have the last of them for itself."""


def put_long_ones_first(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


class WorkUnits(LoadScopeScheduling):  # type: ignore[misc]  # its package has no types
    """The tests of a file run in one process. Those of the browser client with one browser do: it starts once."""

    def _split_scope(self, nodeid: str) -> str:
        of_browser = _BROWSER.match(nodeid)
        return "/".join(of_browser.groups()) if of_browser else nodeid.partition("::")[0]
