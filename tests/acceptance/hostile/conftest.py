"""One daemon for all attacks, and what must hold after each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon, Shop
from tests.support.rawhttp import event, memory, outcomes

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
    """The daemon serves on, within its memory; nothing failed inside it, and nothing secret is in its log."""
    yield
    assert daemon.post("/track", event(), shop.public.id).status == 200
    assert daemon.post_signed(event(), shop.server).status == 200
    assert outcomes(daemon)["failed"] == 0
    assert memory(daemon.pid, "VmHWM") < MOST_MEMORY
    daemon.read_log()
    log = "\n".join(daemon.log)
    assert "Traceback" not in log
    assert " ERROR " not in log
    for secret in (shop.public.id, shop.server.id, shop.server.secret):
        assert secret not in log
