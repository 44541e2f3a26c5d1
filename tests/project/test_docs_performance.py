"""The figures in docs/performance.md and benchmarks/RUNS.md are those of the newest run of the benchmark."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

from benchmarks.load import BATCH
from benchmarks.run import BATCHES, BESIDE, CASES, HALF, NEWEST, UNIT, Results, medians, to_each_other

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text()
RUNS = (ROOT / "benchmarks" / "RUNS.md").read_text()
RUN = json.loads(NEWEST.read_text())
RESULTS: Results = {(each["case"], each["server"]): each["slices"] for each in RUN["results"]}
SINGLE, BROWSER, *_ = CASES
SQLITE, REDIS = "ingestd, SQLite", "ingestd, Redis"


def table(text: str) -> list[list[str]]:
    """The cells of the first table, without its head."""
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert rows
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[0].splitlines()[2:]]


def rounded(value: float, shown: str) -> str:
    """The figure with as many decimals as on the page."""
    decimals = len(shown.partition(".")[2])
    return f"{value:,.{decimals}f}"


def to_bare(case: str, server: str) -> float:
    return to_each_other(RESULTS[case, server], RESULTS[case, UNIT])


def batches_to_single(server: str) -> float:
    return BATCH * to_each_other(RESULTS[BATCHES, server], RESULTS[BESIDE, server])


def p99_at_half(server: str) -> float:
    return medians(RESULTS[HALF, server])["p99 ms"]


def test_the_first_table_is_the_newest_run() -> None:
    shown = []
    case = ""
    for name, *cells in table(PAGE):
        if name.startswith("**"):
            case = name.strip("*")
            continue
        shown.append((case, name))
        row = medians(RESULTS[case, name])
        events = row["req/s"] * (BATCH if case == BATCHES else 1)
        ratio = to_bare(case, name) if case in CASES else None
        values = zip([events, ratio, row["CPU µs"], row["p50 ms"], row["p99 ms"]], cells, strict=True)
        expected = ["" if value is None else rounded(value, cell) for value, cell in values]
        assert cells == expected, (case, name)
    assert shown == [key for key in RESULTS if key[0] != BESIDE]


def test_the_goals_stand_beside_the_newest_run() -> None:
    values = [
        *(to_bare(case, server) for case, server in [(SINGLE, SQLITE), (BROWSER, SQLITE), (SINGLE, REDIS)]),
        *(batches_to_single(server) for server in (SQLITE, REDIS)),
        *(p99_at_half(server) for server in (SQLITE, REDIS)),
    ]
    newest = [row[2] for row in table(PAGE.partition("\n## Goals\n")[2])]
    assert newest[: len(values)] == [rounded(value, cell) for value, cell in zip(values, newest, strict=False)]


def test_the_newest_row_of_runs_is_the_newest_run() -> None:
    at, *cells = table(RUNS)[0]
    assert at == f"{datetime.fromisoformat(RUN['at']):%-d %b, %H:%M}"
    values = [
        medians(RESULTS[SINGLE, UNIT])["CPU µs"],
        *(to_bare(SINGLE, server) for server in (SQLITE, REDIS)),
        *(batches_to_single(server) for server in (SQLITE, REDIS)),
        *(p99_at_half(server) for server in (SQLITE, REDIS)),
    ]
    assert cells == [rounded(value, cell) for value, cell in zip(values, cells, strict=True)]
