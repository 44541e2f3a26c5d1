"""One daemon for each HTTP server and store, and the promises that hold after every attack."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from benchmarks.hostile_memory import BOUND
from tests.support.daemon import Daemon, Shop
from tests.support.rawhttp import assert_unharmed
from tests.support.trust import Pair, Site, open_site

PROXY = "127.0.1.1"
"""A proxy that the daemon trusts: requests from here may name any address as the client's."""

TARGETS = [str(uuid.UUID(int=number, version=4)) for number in range(100)]
"""Server keys with ids that strangers know. Each key has a budget for wrong signatures."""

LINKS = "max_links = 3\nmax_visitors = 5"


TABLES = {"http": f'trusted_proxies = ["{PROXY}"]', "plugins.identity": LINKS}


@pytest.fixture(scope="package", params=["sqlite", "redis"])
def pair(request: pytest.FixtureRequest, http_server: str) -> Pair:
    return Pair(http_server, request.param)


@pytest.fixture(scope="package")
def site(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(pair, tmp_path_factory.mktemp("strangers"), TABLES, TARGETS) as site:
        yield site


@pytest.fixture(scope="package")
def shop(site: Site) -> Shop:
    return site.shop


@pytest.fixture(scope="package")
def daemon(site: Site) -> Daemon:
    return site.daemon


@pytest.fixture(autouse=True)
def unharmed(shop: Shop, daemon: Daemon) -> Iterator[None]:
    yield
    assert_unharmed(shop, daemon, BOUND, *TARGETS)
