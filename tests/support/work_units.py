"""The tests that run in one process, one after the other."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

__all__ = ["work_units"]

_BROWSER = re.compile(r"(tests/acceptance/browser_client)/.*\[(chromium|firefox)\b")

_LONG = (
    "tests/acceptance/browser_client/",
    "tests/acceptance/backend_clients/test_answers.py", "tests/acceptance/backend_clients/test_outages.py",
    "tests/acceptance/test_dist.py", "tests/acceptance/test_placing.py", "tests/acceptance/test_upgrades.py",
    "tests/kernel/delivery/test_dead_letters.py", "tests/plugins/sinks/iceberg/test_catalogues.py",
    "tests/plugins/sinks/kafka/test_kafka.py", "tests/plugins/sinks/kafka/test_failures.py",
    "tests/plugins/sinks/parquet/test_troubles.py", "tests/plugins/stores/redis/test_cluster.py",
)  # fmt: skip
"""Files that take about a minute, and would begin late. A process could have the last of them for itself."""


def work_units(tests: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests of each file, or of each browser for the browser client: it starts once. Long units come first."""
    units: dict[str, list[pytest.Item]] = {}
    for test in tests:
        of_browser = _BROWSER.match(test.nodeid)
        name = "/".join(of_browser.groups()) if of_browser else test.nodeid.partition("::")[0]
        units.setdefault(name, []).append(test)
    return [units[name] for name in sorted(units, key=lambda name: not name.startswith(_LONG))]
