"""Fixtures of the tests of HTTP."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.door import MakeDoor, open_door


@pytest.fixture
def door(http_server: str) -> MakeDoor:
    return partial(open_door, server=http_server)
