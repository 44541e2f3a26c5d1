"""A daemon that is killed under the SDKs: each of them sends again, nothing is lost, and nothing is stored twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tests.support.browser import Browser
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.ports import free_port
from tests.support.sdk_pages import BROWSER_SDKS, go_on, make_calls, sdk_pages
from tests.support.sdks import PATIENCE, Call, ServerSdk, Start

ROUND = 60
"""Calls of an SDK for servers: they fill whole batches, which have up to 15, 20 or 100 messages."""
BROWSER_ROUND = 5


class Sender:
    """Makes calls with an SDK. Each has a number that no other call has."""

    def __init__(self, package: str, make: Callable[[Sequence[Call]], None], size: int) -> None:
        self.numbers: list[str] = []
        self._package = package
        self._make = make
        self._size = size

    def make_round(self) -> None:
        first = len(self.numbers)
        numbers = [f"{self._package}-{number}" for number in range(first, first + self._size)]
        self.numbers += numbers
        visitor = {} if self._package in BROWSER_SDKS else {"anonymousId": self._package}
        self._make([("track", {**visitor, "event": "Page View", "properties": {"number": each}}) for each in numbers])


def test_a_daemon_that_is_killed_twice_gets_every_message_once(
    tmp_path_factory: pytest.TempPathFactory, server_sdks: list[ServerSdk], start: Start
) -> None:
    new = tmp_path_factory.mktemp
    shop = Shop(new("shop"))
    host = f"127.0.0.1:{free_port()}"

    def daemon() -> Daemon:
        return Daemon(shop.config, arguments=("--set", f'http.listen="{host}"'))

    with sdk_pages(new("pages")) as pages, Browser(new("profile")) as browser:
        programs = {sdk.package: start(sdk, host, shop.public.id) for sdk in server_sdks}
        senders = [Sender(package, program.make, ROUND) for package, program in programs.items()]
        tabs = {}
        for package in BROWSER_SDKS:
            url = pages.publish(package, host, shop.public.id)
            tab = browser.tab()
            tab.open(url)
            tabs[url] = tab
            senders.append(Sender(package, partial(make_calls, tab), BROWSER_ROUND))

        def make_round() -> None:
            for sender in senders:
                sender.make_round()

        for _ in range(2):
            before = len(shop.stored())
            with daemon() as first:
                make_round()
                wait_until(lambda before=before: len(shop.stored()) > before, PATIENCE)  # type: ignore[misc]
                first.kill()
            make_round()  # to nobody
        for url, tab in tabs.items():
            go_on(tab, url)
        with daemon() as last:
            make_round()
            numbers = {number for sender in senders for number in sender.numbers}
            wait_until(lambda: shop.count() >= len(numbers), PATIENCE)
            assert {package: program.end() for package, program in programs.items()} == {each: [] for each in programs}
            assert last.terminate() == 0
    stored = shop.stored()
    assert Counter(record["data"]["number"] for record in stored) == dict.fromkeys(numbers, 1)
    assert len({record["messageId"] for record in stored}) == len(stored)
    assert {record["id"] for record in shop.archived()} == {record["id"] for record in stored}
