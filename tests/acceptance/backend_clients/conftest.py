"""Fixtures: a backend in each language."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.backend import COMMANDS, Backend
from tests.support.daemon import Shop

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory. Each event is a file, and ext4 looks long for a new one when thousands have been removed."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(params=COMMANDS)
def language(request: pytest.FixtureRequest) -> str:
    (program, *_) = COMMANDS[request.param]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on PATH")
    return str(request.param)


@pytest.fixture
def backend(language: str, tmp_path: Path) -> Backend:
    return Backend(Shop(tmp_path), COMMANDS[language])
