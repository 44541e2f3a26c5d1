"""One daemon for all attacks, and the checks after each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon, Shop
from tests.support.rawhttp import assert_unharmed

# A daemon takes some 50 MB when it has started, and SQLite keeps up to 32 MB of pages. The rest is for bodies.
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
