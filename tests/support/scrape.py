"""Parsers for /metrics and for the tables of docs/metrics.md, and promtool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from .prometheus_server import promtool

__all__ = ["Documented", "documented", "documented_labels", "lint", "parse", "tables"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def parse(text: bytes) -> dict[str, Metric]:
    """The families by their names in the output."""
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text.decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name not in found, f"{name} is shown twice"
        found[name] = family
    return found


def lint(text: bytes) -> str:
    """The faults that promtool finds in metrics. The text is empty if there are none."""
    done = promtool("check", "metrics", text=text)
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0 or output, "promtool failed without output"
    return output


class Documented(NamedTuple):
    type: str
    labels: frozenset[str]
    values: frozenset[str]
    """All texts in code style in the description."""


def tables() -> dict[str, list[list[str]]]:
    """The rows of each table of the document, by the heading of its first column."""
    found: dict[str, list[list[str]]] = {}
    rows: list[list[str]] = []
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            rows = []
        elif not rows:
            rows = found.setdefault(cells[0], [cells])
        elif not line.startswith("|---"):
            rows.append(cells)
    return {name: rows[1:] for name, rows in found.items()}


def documented() -> dict[str, Documented]:
    """The documented metrics by name."""
    return {
        next(_code(name)): Documented(kind, frozenset(_code(labels)), frozenset(_code(meaning)))
        for name, kind, labels, meaning in tables()["metric"]
    }


def documented_labels() -> dict[str, frozenset[str]]:
    """The documented labels, each with the texts in code style of its description."""
    return {label: frozenset(_code(values)) for labels, values in tables()["label"] for label in _code(labels)}


def _code(cell: str) -> Iterator[str]:
    yield from re.findall(r"`([^`]*)`", cell)
