"""Fixtures: both browsers, a shop's pages and its daemon, shared by all tests of the client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.support.browser_visits import MakeSite
from tests.support.daemon import Daemon, Shop
from tests.support.firefox import Firefox
from tests.support.platforms import TABLES
from tests.support.shop_pages import ShopPages, Site, shop_pages
from tests.support.tab import AnyBrowser

_NUMBERS = count()


@pytest.fixture(scope="package", params=[Browser, Firefox], ids=["chromium", "firefox"])
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBrowser]:
    with request.param(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="package")
def pages() -> Iterator[ShopPages]:
    with shop_pages() as served:
        yield served


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("shop"), {"http": 'shutdown_timeout = "100ms"', **TABLES})


@pytest.fixture(scope="package")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


@pytest.fixture
def site(request: pytest.FixtureRequest, browser: AnyBrowser, pages: ShopPages, shop: Shop, daemon: Daemon) -> MakeSite:
    words = re.sub("[^a-z]+", "-", request.node.originalname.removeprefix("test_").lower())

    def make(url: str = f"http://127.0.0.1:{daemon.port}", **options: Any) -> Site:
        name = f"{browser.name}-{words[:40].strip('-')}-{next(_NUMBERS)}"
        return pages.site(name, url, shop.public.id, **options)

    return make
