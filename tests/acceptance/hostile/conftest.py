"""One daemon for all attacks, and what must hold after each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon, Shop
from tests.support.rawhttp import assert_unharmed

# One that has only started takes some 50 MB, and SQLite may keep 32 MB of pages; bodies of a megabyte come and go.
MOST_MEMORY = 160 * 2**20


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory, http_server: str) -> Shop:
    return Shop(tmp_path_factory.mktemp("hostile"), {"http": f'server = "{http_server}"'})


@pytest.fixture(scope="package")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


@pytest.fixture(autouse=True)
def unharmed(shop: Shop, daemon: Daemon) -> Iterator[None]:
    yield
    assert_unharmed(shop, daemon, MOST_MEMORY)
