"""A consumer that gives way, in a daemon that takes a burst of batches."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.daemon import Shop
from tests.support.distribution import write_distribution

PLUGIN = """
    import asyncio
    import time
    from pathlib import Path

    from ingestd.api import hookimpl
    from ingestd.api.consumer import Consumer

    HERE = Path(__file__).parent


    class Patient(Consumer):
        name = "shop:patient"

        async def process(self, records, step):
            begun = time.monotonic()
            await step.give_way()
            (HERE / "gave way").write_text(str(time.monotonic() - begun))


    @hookimpl
    def register_consumers(register):
        register(Patient())


    @hookimpl
    async def enrich(event, state):
        while event.context.get("waits") and not (HERE / "over").exists():
            await asyncio.sleep(0.01)
"""


def wait_for(path: Path) -> float:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return float(path.read_text())


def test_during_a_burst_of_batches_the_consumer_waits_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = write_distribution(tmp_path / "site", "patience", modules={"patience": PLUGIN}, plugins={"p": "patience"})
    monkeypatch.setenv("PYTHONPATH", str(site))
    shop = Shop(tmp_path, {"plugins": 'enabled = ["p", "keys", "identity", "session"]'})
    page = {"key": "Page View", "anonymousId": "v", "data": {}}
    batch = {"events": [{**page, "anonymousId": f"v-{number}", "context": {"waits": True}} for number in range(201)]}
    with shop.serve() as daemon, ThreadPoolExecutor() as threads:
        answer = threads.submit(daemon.post, "/batch", batch, shop.public.id)
        try:
            while daemon.metric("ingestd_waiting_events") < len(batch["events"]):
                assert not answer.done(), answer.result().body
            assert daemon.post("/track", page, shop.public.id).status == 200
            assert wait_for(site / "gave way") >= 0.05
        finally:
            (site / "over").touch()
        assert {result["status"] for result in answer.result().json()["results"]} == {200}
