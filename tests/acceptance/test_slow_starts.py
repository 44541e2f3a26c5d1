"""Starts and stops that wait for a plugin: they name it, end at a signal, and have a limit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.distribution import write_distribution
from tests.support.forked import INGESTD, Command, short_times
from tests.support.init import Init

HANGS = {
    "waits": "await asyncio.sleep(3600)",
    "holds": "time.sleep(3600)",
    "insists": """
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass""",
}
PLUGIN = """
    import asyncio
    import time

    from ingestd.api import hookimpl

    async def hang():
        {hang}

    @hookimpl
    async def {hook}({argument}):
        await hang()
"""


@pytest.fixture(scope="module", autouse=True)
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Plugins whose `startup` or `shutdown` hangs, each in its own way."""
    modules = {
        f"{name}_at_{hook}": PLUGIN.format(hang=hang, hook=hook, argument="daemon" * (hook == "startup"))
        for name, hang in HANGS.items()
        for hook in ("startup", "shutdown")
    }
    site = write_distribution(
        tmp_path_factory.mktemp("site"), "hanging", modules=modules, plugins={name: name for name in modules}
    )
    with pytest.MonkeyPatch.context() as patch, short_times(wait_told=0.2, plugin_startup=1.0, plugin_shutdown=0.5):
        patch.setenv("PYTHONPATH", str(site))
        yield


def serve(shop: Shop, log: Path) -> Command:
    with log.open("wb") as file:
        return Command([INGESTD, "serve", "--config", str(shop.config)], stderr=file)


@pytest.mark.parametrize("hang", HANGS)
def test_a_start_that_hangs_names_the_plugin_and_ends_at_its_limit(hang: str, tmp_path: Path) -> None:
    plugin = f"{hang}_at_startup"
    shop = Shop(tmp_path, {"plugins": f'also = ["{plugin}"]'})
    begun = time.monotonic()
    process = serve(shop, tmp_path / "log")
    assert process.wait(30) == os.EX_TEMPFAIL
    assert time.monotonic() - begun > 1.0
    log = (tmp_path / "log").read_text().splitlines()
    assert sum(f"waits for plugin {plugin}, for 1 s, which is the limit" in line for line in log) == 1
    assert f"waits for plugin {plugin}, for 1 s, which is the limit" in log[-1]
    assert any(line.endswith(f"waits for plugin {plugin}, for 0 s now") for line in log)


@pytest.mark.parametrize(
    ("hang", "stop"), [("waits", signal.SIGTERM), ("holds", signal.SIGINT), ("insists", signal.SIGTERM)]
)
def test_a_signal_ends_a_start_that_hangs(hang: str, stop: signal.Signals, tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins": f'also = ["{hang}_at_startup"]'})
    with short_times(plugin_startup=3600.0):
        process = serve(shop, tmp_path / "log")
    wait_until(lambda: "waits for plugin" in (tmp_path / "log").read_text())
    process.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(stop)
    assert process.wait(10) == 0
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert last.endswith("stopped before the start has ended" if hang == "waits" else "_at_startup")


def test_a_supervisor_learns_what_a_start_waits_for_and_of_its_stop(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins": 'also = ["waits_at_startup"]'})
    environment = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    with Init(shop.config, environment=environment) as init:
        init.begin()
        init.wait_until(lambda: "waits for plugin waits_at_startup" in init.told("STATUS"))
        assert init.stop() == 0
    assert (init.count("READY=1"), init.count("STOPPING=1")) == (0, 1)


@pytest.mark.parametrize("hang", HANGS)
def test_a_stop_does_not_wait_for_a_plugin_for_ever(hang: str, tmp_path: Path) -> None:
    plugin = f"{hang}_at_shutdown"
    shop = Shop(tmp_path, {"plugins": f'also = ["{plugin}"]'})
    with Daemon(shop.config) as daemon:
        event = {"key": "Page View", "anonymousId": "visitor", "data": {}}
        assert daemon.post("/track", event, shop.public.id).status == 200
        assert daemon.terminate() == 0
        assert any(f"waits for the shutdown of plugin {plugin}, for 0.5 s" in line for line in daemon.log)
    assert len(shop.stored()) == 1
