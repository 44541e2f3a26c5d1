"""Periodic work: pauses, errors, and the page of the site that lists all of it."""

from __future__ import annotations

import ast
import asyncio
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from ingestd.api.errors import Unavailable
from ingestd.support.periodic import TIMING, Timing, every, seconds_between_looks
from scripts import docs_site

ROOT = Path(__file__).parents[3]


class _Enough(Exception): ...


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TIMING, "clocks", 0.001)


def test_the_page_lists_all_times_of_a_daemon() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \| \w", docs_site.times(), re.MULTILINE))
    assert {name: float(seconds) for name, seconds in listed.items()} == asdict(Timing())


def test_each_time_is_used() -> None:
    used = set()
    for folder in ("ingestd", "plugins", "testing"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text()
            if not re.search(r"TIMING|every\(|self\._run\(", source):  # most modules, and parsing takes long
                continue
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "TIMING":
                    used.add(node.attr)
                elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"every", "self._run"} and node.args:
                    used.add(str(getattr(node.args[0], "value", "")))
    assert {*asdict(Timing())} <= used


async def test_a_step_is_repeated_and_may_choose_the_next_pause() -> None:
    loop, steps = asyncio.get_running_loop(), []

    async def step() -> float | None:
        steps.append(loop.time())
        if len(steps) == 4:
            raise _Enough
        return 0.05 if len(steps) == 2 else None

    with pytest.raises(_Enough):
        await every("clocks", step)
    assert steps[2] - steps[1] >= 0.05


async def test_an_expected_error_is_tried_again_and_another_ends_the_work() -> None:
    errors = [Unavailable("away"), Unavailable("away"), ValueError("a bug")]

    def step() -> None:
        raise errors.pop(0)

    with pytest.raises(ValueError, match="a bug"):
        await every("clocks", step, may_fail=Unavailable)
    assert not errors


async def test_a_slow_step_never_overlaps_itself() -> None:
    running = most = count = 0

    async def step() -> None:
        nonlocal running, most, count
        running, count = running + 1, count + 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        if count == 5:
            raise _Enough

    with pytest.raises(_Enough):
        await every("clocks", step, first=0)
    assert most == 1


def test_looks_at_many_partitions_cost_no_more() -> None:
    assert seconds_between_looks(1.0, 1, 10.0) == 1.0
    assert seconds_between_looks(1.0, 101, 10.0) == 5.0
    assert seconds_between_looks(1.0, 1001, 10.0) == 10.0


def test_endless_loops_are_few() -> None:
    """Work that is repeated after a pause is done by `every`. These read something until its end."""
    loops = sum(
        path.read_text().count("while True:")
        for folder in ("ingestd", "plugins", "testing")
        for path in (ROOT / folder).rglob("*.py")
    )
    assert loops <= 26
