from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.platforms import Platforms, platforms


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platforms]:
    with platforms(tmp_path_factory.mktemp("webhooks")) as running:
        yield running
