"""What each SDK does with an answer that is lost, and with 401, 429, 503 and a message that is refused."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.recording_proxy import Exchange, RecordingProxy, recording_proxy
from tests.support.sdk_pages import BROWSER_SDKS, make_calls, sdk_pages
from tests.support.sdks import PATIENCE, Call, ServerSdk, Start

RATE = 10
"""Messages a second of a key, and its burst."""
DEBT = 30
"""Messages that a key owes: three seconds."""
DEBTS = {"analytics-go": 65}
"""Larger debts, of an SDK that pauses for five seconds before a batch."""
WAITS_AS_TOLD = {
    "@segment/analytics-node",
    "@rudderstack/rudder-sdk-node",
    "segment-analytics-python",
    "@segment/analytics-next",
}
"""The SDKs that follow Retry-After after 429."""

Make = Callable[[list[Call]], None]


def track(package: str, phase: str, event: str = "Page View", **properties: Any) -> Call:
    members = {"event": event, "properties": {"package": package, "phase": phase, **properties}}
    return ("track", members if package in BROWSER_SDKS else {"anonymousId": package, **members})


class Scene:
    """A daemon behind a proxy, and all SDKs, each with its own key."""

    def __init__(self, shop: Shop, daemon: Daemon, proxy: RecordingProxy) -> None:
        self.shop = shop
        self.daemon = daemon
        self.proxy = proxy
        self.makers: dict[str, Make] = {}
        self.failures: dict[str, list[str]] = {}
        """What the SDKs for servers report."""
        self.failures_of_strangers: dict[str, list[str]] = {}
        """What they report where the daemon does not know their key."""

    def exchanges(self, package: str, phase: str) -> list[Exchange]:
        """The requests of an SDK that have a message of this phase."""
        return [
            exchange
            for exchange in list(self.proxy.exchanges)
            if exchange.method == "POST"
            and any(
                {"package": package, "phase": phase}.items() <= message.get("properties", {}).items()
                for message in exchange.messages
            )
        ]

    def records(self, package: str, phase: str) -> list[dict[str, Any]]:
        wanted = {"package": package, "phase": phase}.items()
        return [record for record in self.shop.stored('"phase"') if wanted <= record["data"].items()]

    def make(self, phase: str, *events: tuple[str, dict[str, Any]]) -> None:
        for package, make in self.makers.items():
            make([track(package, phase, event, **properties) for event, properties in events])

    def answered(self, package: str, phase: str, status: int) -> set[str]:
        """The messages of this phase for which the SDK has got this status."""
        return ids([each for each in self.exchanges(package, phase) if each.reply.status == status and not each.lost])

    def wait_for(self, phase: str, status: int, count: int = 1) -> None:
        """Wait until each SDK has got this status for `count` messages of the phase."""

        def is_done(package: str) -> bool:
            return len(self.answered(package, phase, status)) >= count

        wait_until(lambda: all(is_done(package) for package in self.makers), PATIENCE)


def key_of(package: str) -> str:
    return "key-of-" + package.strip("@").replace("/", "-")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, server_sdks: list[ServerSdk], start: Start) -> Iterator[Scene]:
    """All of it happens once, to all SDKs at the same time."""
    new = tmp_path_factory.mktemp
    packages = [*(sdk.package for sdk in server_sdks), *BROWSER_SDKS]
    keys = ", ".join(f'{{ id = "{key_of(package)}", kind = "public", tenant = "shop" }}' for package in packages)
    options = {"plugins.keys": f"declared = [{keys}]", "plugins.rate_limit": f'per_key = "{RATE}/s"'}
    shop = Shop(new("shop"), options)
    with (
        shop.serve() as daemon,
        recording_proxy(daemon.port) as proxy,
        sdk_pages(new("pages")) as pages,
        Browser(new("profile")) as browser,
    ):
        scene = Scene(shop, daemon, proxy)
        programs = {sdk.package: start(sdk, proxy.host, key_of(sdk.package)) for sdk in server_sdks}
        strangers = {sdk.package: start(sdk, proxy.host, "unknown-key") for sdk in server_sdks}
        for package in BROWSER_SDKS:
            tab = browser.tab()
            tab.open(pages.publish(package, proxy.host, key_of(package)))
            scene.makers[package] = partial(make_calls, tab)
            stranger = browser.tab()
            stranger.open(pages.publish(package, proxy.host, "unknown-key"))
            make_calls(stranger, [track(package, "unauthorized")])
        scene.makers |= {package: program.make for package, program in programs.items()}
        for package, program in strangers.items():
            program.make([track(package, "unauthorized")])
        lose_an_answer(scene)
        limit(scene)
        fail_to_store(scene)
        scene.failures = {package: program.end() for package, program in programs.items()}
        scene.failures_of_strangers = {package: program.end() for package, program in strangers.items()}
        yield scene


def lose_an_answer(scene: Scene) -> None:
    """The first request of each key has a bad message in its middle, and its answer is lost."""
    keys = {key_of(package) for package in scene.makers}
    scene.proxy.loses = lambda exchange: (
        exchange.method == "POST" and exchange.key in keys - {each.key for each in scene.proxy.exchanges if each.lost}
    )
    scene.make(
        "lost", ("Page View", {"number": 1}), ("Product Viewed", {"price": "free"}), ("Page View", {"number": 2})
    )
    scene.wait_for("lost", 200, 3)
    scene.proxy.loses = lambda _: False


def limit(scene: Scene) -> None:
    """Each SDK sends a message while its key owes many. On a slow machine an SDK may come late, and tries again."""
    event = {"key": "Page View", "anonymousId": "crowd", "data": {}}

    def uses_up(package: str) -> bool:
        """A batch over the burst is admitted when the bucket is full, and the bucket then owes the rest."""
        answer = scene.daemon.post("/batch", {"events": [event] * (RATE + DEBTS.get(package, DEBT))}, key_of(package))
        return answer.status == 200

    def is_taken(package: str, count: int) -> bool:
        return len(scene.answered(package, "limited", 200)) == count

    left = {*scene.makers}
    for count in range(1, 6):
        for package in left:
            wait_until(lambda package=package: uses_up(package), PATIENCE)  # type: ignore[misc]
            scene.makers[package]([track(package, "limited")])
        for package in left:
            wait_until(lambda package=package, count=count: is_taken(package, count), PATIENCE)  # type: ignore[misc]
        left = {package for package in left if not scene.answered(package, "limited", 429)}
    assert not left


def fail_to_store(scene: Scene) -> None:
    with unwritable(scene.daemon):
        scene.make("unavailable", ("Page View", {}), ("Page View", {}))
        scene.wait_for("unavailable", 503)
    scene.wait_for("unavailable", 200, 2)


@contextmanager
def unwritable(daemon: Daemon) -> Iterator[None]:
    """The daemon may not make any file larger than it is."""
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (soft, hard))


def statuses(exchanges: list[Exchange]) -> list[int]:
    return [exchange.reply.status for exchange in exchanges]


def ids(exchanges: list[Exchange]) -> set[str]:
    return {message["messageId"] for exchange in exchanges for message in exchange.messages}


def test_messages_whose_answer_was_lost_are_sent_again_and_stored_once(scene: Scene, package: str) -> None:
    exchanges = scene.exchanges(package, "lost")
    assert [exchange.lost for exchange in exchanges].count(True) == 1
    lost = ids([exchange for exchange in exchanges if exchange.lost])
    answered = [exchange for exchange in exchanges if not exchange.lost]
    assert lost <= ids(answered)
    assert len(ids(exchanges)) == 3
    assert [record["data"]["number"] for record in scene.records(package, "lost")] in ([1, 2], [2, 1])


def test_a_bad_message_is_refused_alone_and_not_sent_again(scene: Scene, package: str) -> None:
    answered = [exchange for exchange in scene.exchanges(package, "lost") if not exchange.lost]
    assert statuses(answered) == [200] * len(answered)
    assert sum(len(exchange.messages) for exchange in answered) == 3
    bodies = [(exchange.messages, exchange.reply.json()) for exchange in answered]
    refusals = [(messages[each["index"]], each) for messages, body in bodies for each in body.get("rejected", [])]
    ((message, refusal),) = refusals
    assert message["properties"]["price"] == "free"
    assert (refusal["key"], refusal["pointers"]) == ("Product Viewed", ["/properties/price"])


def test_a_message_over_the_rate_is_sent_again_until_it_is_taken(scene: Scene, package: str) -> None:
    (message,) = scene.answered(package, "limited", 429)
    exchanges = [exchange for exchange in scene.exchanges(package, "limited") if message in ids([exchange])]
    *limited, taken = exchanges
    assert statuses(limited) == [429] * len(limited)
    assert taken.reply.status == 200
    assert [record["messageId"] for record in scene.records(package, "limited")].count(message) == 1
    told = [int(exchange.reply.headers["retry-after"]) for exchange in limited]
    assert all(seconds >= 1 for seconds in told)
    if package in WAITS_AS_TOLD:
        pauses = [later.at - earlier.at for earlier, later in pairwise(exchanges)]
        assert all(pause > seconds - 0.1 for pause, seconds in zip(pauses, told, strict=True))


def test_a_message_that_cannot_be_stored_is_sent_again_until_it_is(scene: Scene, package: str) -> None:
    exchanges = scene.exchanges(package, "unavailable")
    assert 503 in statuses(exchanges)
    assert {*statuses(exchanges)} == {200, 503}
    assert all(int(each.reply.headers["retry-after"]) >= 1 for each in exchanges if each.reply.status == 503)
    assert len(ids(exchanges)) == len(scene.records(package, "unavailable")) == 2


def test_no_sdk_gives_up(scene: Scene, sdk: ServerSdk) -> None:
    assert scene.failures[sdk.package] == []


def test_a_message_with_an_unknown_key_is_refused(scene: Scene, package: str) -> None:
    exchanges = scene.exchanges(package, "unauthorized")
    assert {*statuses(exchanges)} == {401}
    problem = exchanges[0].reply.json()
    assert all(isinstance(problem[name], str) and problem[name] for name in ("code", "message", "error"))
    assert scene.records(package, "unauthorized") == []
    if package != "analytics-go":  # it tells its log, and tries ten times
        assert len(exchanges) == 1
        assert package in BROWSER_SDKS or len(scene.failures_of_strangers[package]) == 1


def test_each_request_is_counted_with_its_outcome(scene: Scene) -> None:
    outcomes = {
        outcome: scene.daemon.metric(f'ingestd_events_total{{endpoint="segment",key="Page View",outcome="{outcome}"}}')
        for outcome in ("accepted", "duplicate", "unavailable")
    }
    makers = len(scene.makers)
    assert outcomes["accepted"] == len(scene.shop.stored('"phase"')) >= makers * (2 + 1 + 2)
    assert outcomes["duplicate"] >= makers
    assert outcomes["unavailable"] >= makers
