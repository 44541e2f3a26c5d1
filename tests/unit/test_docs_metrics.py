"""docs/metrics.md and docs/api.md say what the code has, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.metrics_core import Metric

from ingestd import errors
from ingestd.metrics import Metrics
from ingestd.outcomes import Outcome
from ingestd.plugins.identity import IdentityPlugin
from tests.support.backends import sqlite_daemon

DOCS = Path(__file__).parents[2] / "docs"


def rows(document: str) -> list[list[str]]:
    lines = (DOCS / document).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def exposed_name(metric: Metric) -> str:
    return metric.name + ("_total" if metric.type == "counter" else "")


async def test_every_metric_is_documented_and_every_documented_metric_exists(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        identity = IdentityPlugin(IdentityPlugin.Options())
        identity.startup(daemon)
        metrics = Metrics()
        metrics.show_sinks([])
        collected = [*metrics.registry.collect(), *daemon.registry.collect()]
    exposed = {(exposed_name(m), m.type) for m in collected if m.name.startswith("ingestd_")}
    documented = {(row[0].strip("`"), row[1]) for row in rows("metrics.md") if row[0].startswith("`ingestd_")}
    assert documented == exposed


def test_every_outcome_is_documented() -> None:
    assert {row[0].strip("`") for row in rows("metrics.md") if not row[0].startswith("`ingestd_")} == {
        outcome.value for outcome in Outcome
    }


def test_every_status_with_its_code_is_documented() -> None:
    documented: dict[int, set[str]] = {}
    for line in (DOCS / "api.md").read_text().splitlines():
        match = re.match(r"\| (\d{3}) \| (.*?) \|", line)
        if match is not None:
            documented.setdefault(int(match[1]), set()).update(re.findall(r"`(\w+)`", match[2]))
    for name in errors.__all__:
        error = getattr(errors, name)
        if isinstance(error, type) and issubclass(error, errors.Refused) and hasattr(error, "status"):
            if error in {errors.BadRequest, errors.Forbidden, errors.Limited}:
                continue  # each is raised with a code of its own, or by plugins only
            assert error.code in documented[error.status], name
