"""A daemon with one sink, to show what the sink does while its target is in trouble, and afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from .clients import wait_until
from .daemon import PATIENCE, Daemon, Shop

__all__ = ["TroubledSink", "check_page", "troubled_sink"]

_PAGES = Path(__file__).parents[2] / "docs" / "sinks"

_COMMON = """
batch = { max_wait = "0s" }
retry = { attempts = 2, initial = "20ms", max = "200ms" }
"""
_VISITORS = 3
_CAUSES = 6  # different messages that one trouble may have, each with a line of the log


def check_page(page: str, tested: Mapping[str, str]) -> None:
    """Checks that the table on a sink's page has these troubles, each with a reason that matches its pattern."""
    table = (_PAGES / page).read_text().partition("| trouble |")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"^\| ([^|`]+?) \| `([^`]+)` \|", table, re.MULTILINE))
    assert shown.keys() == tested.keys()
    assert not [name for name in tested if re.search(tested[name], shown[name]) is None]


class TroubledSink:
    """The sink `target` of a running daemon. `read` returns the decoded records that its target has."""

    def __init__(self, shop: Shop, daemon: Daemon, read: Callable[[], Sequence[Any]]) -> None:
        self._shop = shop
        self._daemon = daemon
        self._read = read
        self._sent = 0

    def deliver(self) -> None:
        """Send an event of each visitor, and wait until the target has all events."""
        self._send()
        self._until_delivered()

    def waits_through(self, trouble: Callable[[], AbstractContextManager[Any]], message: str, failures: int) -> None:
        """Send events in this trouble, and check that the sink waits, says why, and later delivers each record once.

        `message` is a pattern of the reason. `failures` is the number of failed attempts to wait for.
        """
        self.deliver()
        self._daemon.read_log()
        logged, before = len(self._daemon.log), self._metric("retries_total")
        with trouble():
            self._send()
            wait_until(lambda: self._metric("retries_total") >= before + failures)
            status = self._failing_status()
            assert status["state"] == "failing"
            assert re.search(message, status["lastError"]["reason"]), status["lastError"]
            assert status["pending"] == self._metric("pending") == _VISITORS
            assert status["deadLetters"] == status["givenUp"] == status["lost"] == 0
        self._until_delivered()
        wait_until(lambda: self._metric("pending") == 0)
        assert self._metric("dead_letters") == self._metric("given_up_total") == 0
        self._check_log(logged, int(self._metric("retries_total") - before))

    def reconfigure(self, old: str, new: str) -> None:
        """Replace a text in the configuration, and have the daemon reload it."""
        text = self._shop.config.read_text()
        assert old in text
        self._shop.config.write_text(text.replace(old, new))
        self.reload()

    def reload(self) -> None:
        """Reload. If the options of the sink have changed, it is opened again."""
        generation = self._daemon.metric("ingestd_config_generation")
        os.kill(self._daemon.pid, signal.SIGHUP)
        wait_until(lambda: self._daemon.metric("ingestd_config_generation") > generation)

    def _send(self) -> None:
        for visitor in range(_VISITORS):
            self._sent += 1
            event = {"key": "Page View", "anonymousId": f"visitor-{visitor}", "data": {"number": self._sent}}
            assert self._daemon.post("/track", event, self._shop.public.id).status == 200

    def _until_delivered(self) -> None:
        wait_until(lambda: self._shop.is_done("sink:target"))
        wanted = self._shop.stored()
        found = sorted(self._read(), key=lambda record: int(record["data"]["number"]))
        assert [record["id"] for record in found] == [record["id"] for record in wanted]

    def _failing_status(self) -> Any:
        """The status once it has a failure, which the daemon stores within a second."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status = json.loads(self._shop.command("sinks", "status", "target", "--json"))
            if status["lastError"] is not None:
                return status
            assert time.monotonic() < deadline, status

    def _metric(self, name: str) -> float:
        return self._daemon.metric(f'ingestd_sink_{name}{{sink="target"}}')

    def _check_log(self, start: int, failures: int) -> None:
        """Few lines for many failures, and none with a trace or a secret."""
        self._daemon.read_log()
        lines = self._daemon.log[start:]
        told = [line for line in lines if "it is tried again" in line]
        assert 1 <= len(told) <= failures.bit_length() + _CAUSES, "\n".join(lines)
        assert not [line for line in lines if "ERROR" in line or "Traceback" in line], "\n".join(lines)
        secrets = [*_secrets(tomllib.loads(self._shop.config.read_text())["sinks"]["target"])]
        assert not [line for line in lines if any(secret in line for secret in secrets)]


def _secrets(table: dict[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _secrets(value)
        elif name in {"password", "access_key", "secret_key"}:
            yield str(value)


@contextmanager
def troubled_sink(folder: Path, options: str, read: Callable[[], Sequence[Any]]) -> Iterator[TroubledSink]:
    """`options` are TOML lines of the sink, without those that every sink has, except `timeout`."""
    tables = {
        "http": 'shutdown_timeout = "500ms"',
        "plugins": 'enabled = ["keys", "identity", "session", "sqlite"]',
        "sinks.target": _COMMON + options,
    }
    shop = Shop(folder, tables)
    with Daemon(shop.config) as daemon:
        yield TroubledSink(shop, daemon, read)
