"""The daemon that plugin authors test with: `ingestd.testing.daemon`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ingestd.testing.daemon import running_daemon

PLUGIN = '''
"""A sink that rejects what costs more than 100, fails for what costs nothing, and ends the daemon for less."""

import os
from pathlib import Path

from ingestd.api import hookimpl
from ingestd.api.errors import SinkReject, SinkRetry
from ingestd.api.options import Options
from ingestd.api.sink import Sink


class Shelf(Sink):
    class Options(Options):
        path: Path

    async def write(self, batch):
        prices = [record.decode().get("data", {}).get("price", 1) for record in batch]
        if any(price < 0 for price in prices):
            os._exit(3)
        if 0 in prices:
            raise SinkRetry("the shelf is full")
        if any(price > 100 for price in prices):
            raise SinkReject({index: "too dear" for index, price in enumerate(prices) if price > 100})
        with self.options.path.open("ab") as file:
            file.writelines(record.body + b"\\n" for record in batch)


class ShelfPlugin:
    @hookimpl
    def register_sinks(self, register):
        register("shelf", Shelf)
'''

CONFIG = """
[http]
listen = "192.0.2.1:1"
[store]
url = "sqlite:/nowhere/at/all.db"
[sinks.shelf]
type = "shelf"
path = "shelf.jsonl"
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A plugin that is not installed, but that the test can import."""
    (tmp_path / "shelf_for_tests.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    return {"shelf": "shelf_for_tests:ShelfPlugin"}


def kept(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "shelf.jsonl").read_bytes().splitlines()]


def viewed(price: float) -> dict[str, Any]:
    return {"key": "Product Viewed", "data": {"price": price}}


def test_a_plugin_beside_the_test_receives_records(tmp_path: Path, plugins: dict[str, str]) -> None:
    """The daemon replaces the listeners and the store of the configuration."""
    with running_daemon(tmp_path / "shop", CONFIG, plugins=plugins) as daemon:
        first = daemon.track(viewed(3))
        second = daemon.identify(userId="u-17")
        daemon.wait_until_delivered()
        assert [record["id"] for record in kept(tmp_path / "shop")] == [first, second]
        assert [record["id"] for record in daemon.records()] == [first, second]
        assert [record["id"] for record in daemon.records("identify")] == [second]
        assert daemon.metrics()['ingestd_sink_delivered_total{sink="shelf"}'] == 2
        assert "shelf" in daemon.command("plugins", "list")


def test_delivery_of_derived_records_is_waited_for(tmp_path: Path, plugins: dict[str, str]) -> None:
    with running_daemon(tmp_path / "shop", CONFIG, plugins=plugins) as daemon:
        for number in range(5):
            daemon.track({"key": "Order Completed", "data": {"order_id": f"o-{number}"}})
            daemon.wait_until_delivered()
            assert len(kept(tmp_path / "shop")) == 2 * number + 2


def test_dead_letters_are_shown(tmp_path: Path, plugins: dict[str, str]) -> None:
    with running_daemon(tmp_path / "shop", CONFIG, plugins=plugins) as daemon:
        dear = daemon.track(viewed(200))
        daemon.track(viewed(2))
        daemon.wait_until_delivered()
        (letter,) = daemon.dead_letters("shelf")
        assert (letter["reason"], letter["id"]) == ("too dear", dear)


def test_the_daemon_is_killed_and_started_again_on_the_same_store(tmp_path: Path, plugins: dict[str, str]) -> None:
    with running_daemon(tmp_path / "shop", CONFIG, plugins=plugins) as daemon:
        sent = [daemon.track(viewed(1))]
        daemon.kill()
        daemon.start()
        sent.append(daemon.track(viewed(2)))
        assert daemon.terminate() == 0
        daemon.start()
        sent.append(daemon.track(viewed(3)))
        daemon.kill()  # the block ends with a killed daemon
    with running_daemon(tmp_path / "shop", CONFIG, plugins=plugins) as daemon:
        daemon.wait_until_delivered()
        assert list(dict.fromkeys(record["id"] for record in kept(tmp_path / "shop"))) == sent


def test_other_answers_than_200_can_be_inspected(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        answer = daemon.post("/track", {"key": "Nothing Known", "anonymousId": "v", "data": {}})
        assert (answer.status, answer.json()["code"]) == (404, "unknown_key")
        assert daemon.post("/track", b"{", {"Authorization": "Bearer nobody"}).status == 401
        with pytest.raises(AssertionError, match=r"answered 404: .*unknown_key"):
            daemon.track({"key": "Nothing Known"})


def test_a_failure_shows_the_log(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as raised, running_daemon(tmp_path):
        raise AssertionError("mine")
    assert str(raised.value) == "mine"
    assert "ready: ingestd" in raised.value.__notes__[0]


def test_a_daemon_that_dies_fails_the_test(tmp_path: Path, plugins: dict[str, str]) -> None:
    def author() -> None:
        with running_daemon(tmp_path / "shop", CONFIG, plugins=plugins) as daemon:
            daemon.track(viewed(-1))
            daemon.wait_until_delivered()

    with pytest.raises(AssertionError, match="the daemon has ended, exit code 3"):
        author()


def test_a_daemon_that_dies_unnoticed_fails_the_test_at_its_end(tmp_path: Path) -> None:
    def author() -> None:
        with running_daemon(tmp_path) as daemon:
            (pid,) = (int(line.split()[1]) for line in processes() if str(daemon.folder) in line)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(AssertionError, match="the daemon has ended"):
                daemon.wait_until(lambda: False)

    with pytest.raises(AssertionError, match="the daemon has ended, exit code -9"):
        author()


def test_a_sink_that_does_not_progress_fails_the_test_in_time(tmp_path: Path, plugins: dict[str, str]) -> None:
    def author() -> None:
        with running_daemon(tmp_path / "shop", CONFIG, plugins=plugins) as daemon:
            daemon.track(viewed(0))
            daemon.wait_until_delivered(patience=1.5)

    with pytest.raises(AssertionError) as raised:
        author()
    assert 'ingestd_consumer_pending{consumer="sink:shelf"}' in str(raised.value)
    assert "the shelf is full" in raised.value.__notes__[0]


@pytest.mark.parametrize("config", ['[sinks.x]\ntype = "none"', "[http]\nmax_bdy = 1", "["])
def test_a_faulty_configuration_is_reported(tmp_path: Path, config: str) -> None:
    with pytest.raises(AssertionError, match=r"exits 78:\n.*ingestd\.toml"), running_daemon(tmp_path, config):
        pass


def processes() -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append(f"pid {folder.name} {(folder / 'cmdline').read_bytes()!r}")
        except OSError:  # the process has ended
            continue
    return found
