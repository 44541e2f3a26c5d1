"""Fixtures: a shop, its daemon, records and a copy of this tree, each shared by the tests of a module."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.support.daemon import Daemon, Shop
from tests.support.forked import short_times
from tests.support.imports import records_of_each_type
from tests.support.sink_desk import Desk
from tests.support.told_sink import write_told_sink

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Records of each type, for imports."""
    return records_of_each_type(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def told_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all modules, since a fork server has one module path."""
    return write_told_sink(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def told_sink(told_site: Path) -> Iterator[None]:
    """Daemons and commands find the sink of type `told`. Operators' commands need not wait for daemons."""
    with pytest.MonkeyPatch.context() as patch, short_times(sink_commands=0.05, next_action=0.1):
        patch.setenv("PYTHONPATH", str(told_site))
        yield


@pytest.fixture
def desk(tmp_path: Path, told_sink: None) -> Desk:
    return Desk(tmp_path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git knows, as in a release. Builds take place in the copy."""
    target = tmp_path_factory.mktemp("source") / "ingestd"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target
