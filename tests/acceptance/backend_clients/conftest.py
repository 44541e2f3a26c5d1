"""Fixtures: a backend in each language."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.backend import COMMANDS, Backend
from tests.support.daemon import Shop


@pytest.fixture(params=COMMANDS)
def language(request: pytest.FixtureRequest) -> str:
    (program, *_) = COMMANDS[request.param]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on PATH")
    return str(request.param)


@pytest.fixture
def backend(language: str, tmp_path: Path) -> Backend:
    return Backend(Shop(tmp_path), COMMANDS[language])
