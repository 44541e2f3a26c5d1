"""Attacks that take much memory for few bytes: the daemon stays within its bound and frees the memory afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.hostile_memory import BOUND, attack
from benchmarks.servers import Server
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.rawhttp import event, memory, quiet

SCALES = {
    "wide objects": 0.2, "packed lists": 0.02, "packed batches": 0.02, "long ids": 0.03,
    "long journeys": 0.04, "many headers": 0.05, "unread answers": 0.1, "unfinished bodies": 0.1,
    "unfinished heads": 0.1,
}  # fmt: skip
"""The part of each attack that is sent here. Without bounds the first attack alone takes twice the allowed memory."""

LEFT = 240 * 10**6
"""Bytes that the daemon may keep afterwards, for its caches."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, http_server: str) -> Shop:
    return Shop(tmp_path_factory.mktemp("fire"), {"http": f'server = "{http_server}"'})


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


@pytest.fixture(autouse=True)
def unharmed() -> None:
    """Replaces the check of the other attacks, because this module has its own bound."""


def test_memory_is_bounded_during_attacks_and_freed_afterwards(shop: Shop, daemon: Daemon) -> None:
    server = Server("ingestd", daemon.pid, daemon.port, daemon.ops_port)
    for name, scale in SCALES.items():
        row = attack(server, shop.public.id, name, scale=scale, rest=0.0)
        assert row.peak < BOUND, row
        quiet(daemon)
    assert daemon.post("/track", event(), shop.public.id).status == 200
    wait_until(lambda: memory(daemon.pid, "VmRSS") < LEFT, patience=30.0)
