"""One shop and its daemon for the tests of a module that do not disturb one another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon, Shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running
