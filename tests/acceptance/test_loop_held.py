"""A plugin or sink that holds the event loop is named in the log and the metrics. Others are not."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.distribution import write_distribution

PLUGIN = '''
    """A plugin whose hook and whose sink block, each for a key of its own."""

    import time

    from ingestd.api import hookimpl
    from ingestd.api.sink import Sink


    class Ledger(Sink):
        async def write(self, batch):
            for record in batch:
                if record.decode().get("key") == "Cart Shared":
                    time.sleep(0.3)


    class Prices:
        @hookimpl
        async def enrich(self, event):
            if event.key == "Product Shared":
                time.sleep(0.3)

        @hookimpl
        def register_sinks(self, register):
            register("ledger", Ledger)
'''


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    site = write_distribution(
        tmp_path_factory.mktemp("site"),
        "shop-prices",
        modules={"shop_prices": PLUGIN},
        plugins={"prices": "shop_prices:Prices"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        tables = {"plugins": 'also = ["prices"]', "sinks.books": 'type = "ledger"'}
        yield Shop(tmp_path_factory.mktemp("shop"), tables)


def send(shop: Shop, daemon: Daemon, key: str) -> None:
    event = {"key": key, "anonymousId": "visitor", "data": {}}
    assert daemon.post("/track", event, shop.public.id).status == 200


def holds(daemon: Daemon, holder: str) -> float:
    return daemon.metric(f'ingestd_loop_holds_total{{holder="{holder}"}}')


def lines(daemon: Daemon) -> list[str]:
    daemon.read_log()
    return [line for line in daemon.log if "held the event loop" in line]


def test_the_holder_of_the_loop_is_named_and_a_suspended_daemon_blames_nobody(shop: Shop) -> None:
    with shop.serve() as daemon:
        for _ in range(20):
            send(shop, daemon, "Page View")
        os.kill(daemon.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(daemon.pid, signal.SIGCONT)
        send(shop, daemon, "Page View")
        assert lines(daemon) == []
        assert (holds(daemon, "prices"), holds(daemon, "sink:books")) == (0, 0)
        send(shop, daemon, "Product Shared")
        wait_until(lambda: holds(daemon, "prices") == 1)
        assert daemon.metric('ingestd_loop_held_seconds_total{holder="prices"}') > 0.1
        send(shop, daemon, "Cart Shared")
        wait_until(lambda: holds(daemon, "sink:books") == 1)
        assert daemon.metric('ingestd_loop_held_seconds_total{holder="sink:books"}') > 0.1
        hook, write = lines(daemon)
        held = r"held the event loop for 0\.\d\d s in"
        assert re.search(rf"WARNING ingestd\.loop: plugin prices {held} enrich \(shop_prices, line \d+\)", hook)
        assert re.search(rf"WARNING ingestd\.loop: sink:books {held} write \(shop_prices, line \d+\)", write)
        assert "visitor" not in hook + write
