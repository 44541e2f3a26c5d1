"""Live events: the stream of a daemon, and the view of it in a browser."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.browser import Browser, Tab
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.forked import short_times
from tests.support.live import EventStream

EVENT = {"key": "Product Viewed", "anonymousId": "visitor-ann", "data": {"price": 3, "sku": "sku-17"}}
LEVELS = ("all", "shape", "none")


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Shop, Daemon]]]:
    """A daemon for each level of `[ops] show_data`."""
    with ExitStack() as stack:
        found = {}
        for level in LEVELS:
            options = "" if level == "shape" else f'show_data = "{level}"'
            tables = {
                "ops": options, "http": 'shutdown_timeout = "100ms"', "plugins.segment": 'unknown = "accept"',
            }  # fmt: skip
            shop = Shop(tmp_path_factory.mktemp(level), tables)
            found[level] = shop, stack.enter_context(shop.serve())
        yield found


def send_every_kind(shop: Shop, daemon: Daemon) -> None:
    """Send twelve events and identify requests of every kind."""
    key = shop.public.id
    repeated = {**EVENT, "messageId": "message-9"}
    for body in (EVENT, repeated, repeated):
        assert daemon.post("/track", body, key).status == 200
    assert daemon.post("/track", {**EVENT, "data": {"price": "costs-5"}}, key).status == 400
    assert daemon.post("/track", {**EVENT, "key": "Secretly Viewed"}, key).status == 404
    assert daemon.post("/track", EVENT, "wrong-key").status == 401
    assert daemon.post("/track", b"x" * (1 << 20) + b"x", key).status == 413
    person = {"anonymousId": "visitor-bob", "userId": "user-bob", "traits": {"email": "bob@example.com"}}
    assert daemon.post("/identify/public", person, key).status == 200
    members = [EVENT, {**EVENT, "data": {"price": [{"bob@example.com": 1}]}}, {"type": "identify", **person}]
    assert daemon.post("/batch", {"events": members}, key).status == 200
    assert daemon.post_signed({**EVENT, "bob@example.com": 1}, shop.server).status == 200


KINDS = [
    ("track", None, "Product Viewed", "accepted"), ("track", None, "Product Viewed", "accepted"),
    ("track", None, "Product Viewed", "duplicate"), ("track", None, "Product Viewed", "invalid"),
    ("track", None, "", "unknown_key"), ("track", None, "", "unauthorized"), ("track", None, "", "too_large"),
    ("identify", None, "", "accepted"), ("track-batch", 0, "Product Viewed", "accepted"),
    ("track-batch", 1, "Product Viewed", "invalid"), ("track-batch", 2, "", "accepted"),
    ("customer-events", None, "Product Viewed", "accepted"),
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
def test_every_event_is_a_row_and_only_allowed_data_is_shown(level: str, shops: dict[str, tuple[Shop, Daemon]]) -> None:
    shop, daemon = shops[level]
    with EventStream(daemon) as stream:
        assert stream.hello["showData"] == level
        assert "Product Viewed" in stream.hello["keys"]
        send_every_kind(shop, daemon)
        rows = stream.rows(12)
        assert [(row["endpoint"], row.get("index"), row.get("key", ""), row["outcome"]) for row in rows] == KINDS
        assert stream.came == 12
    records = {each["id"]: each for each in shop.exported()}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["at"]) for row in rows)
    accepted = [row for row in rows if row["outcome"] == "accepted"]
    invalid = next(row for row in rows if row["outcome"] == "invalid")
    assert (invalid["pointer"], invalid["reason"], invalid["faults"]) == ("/data/price", "type", 1)
    values = re.findall("visitor-[ab]|user-bob|message-9|sku-17|bob@|costs-5|Secretly|" + shop.public.id, stream.text)
    if level == "all":
        assert [row["detail"] for row in accepted] == [records[row["detail"]["id"]] for row in accepted]
        assert {row.get("visitor") for row in rows} == {"visitor-ann", "visitor-bob", None}
        assert invalid["message"] == "expected number, got string"
        assert invalid["detail"]["type"] == "urn:ingestd:problem:invalid_data"
        assert rows[4]["sentKey"] == "Secretly Viewed"
        assert shop.public.id not in values
    else:
        assert values == []
    if level == "shape":
        assert [row["detail"]["id"] for row in accepted] == [each for each in records if each in stream.text]
        assert accepted[0]["detail"]["data"] == {"price": "number", "sku": "string"}
        assert accepted[-1]["detail"]["extra"] == {"(undeclared)": "1 member"}
        assert len({row["visitor"] for row in rows if "visitor" in row}) == 2
        assert invalid["message"] == "expected number, got string"
        assert invalid["detail"]["errors"] == [{"pointer": "/data/price", "message": "expected number, got string"}]
    if level == "none":
        assert not any({"detail", "visitor", "message", "sentKey"} & row.keys() for row in rows)


@pytest.mark.parametrize("level", LEVELS)
def test_messages_of_an_intake_are_rows_too(level: str, shops: dict[str, tuple[Shop, Daemon]]) -> None:
    shop, daemon = shops[level]
    message = {"type": "track", "userId": "user-sid", "anonymousId": "visitor-sid", "event": "Secretly Renamed"}
    batch = {"batch": [message, {**message, "event": "Order Completed", "properties": {"total": "costs-9"}}]}
    basic = {"Authorization": f"Basic {base64.b64encode(f'{shop.public.id}:'.encode()).decode()}"}
    with EventStream(daemon) as stream:
        assert daemon.request("POST", "/v1/batch", json.dumps(batch).encode(), basic).status == 200
        rows = [row for row in stream.rows(2) if row["endpoint"] == "segment"]
        while len(rows) < 2:
            rows += [row for row in stream.rows() if row["endpoint"] == "segment"]
    told = [(row["endpoint"], row["index"], row.get("key"), row["outcome"]) for row in rows]
    assert told == [("segment", 0, None, "accepted"), ("segment", 1, "Order Completed", "invalid")]
    hidden = re.findall("Secretly Renamed|user-sid|visitor-sid|costs-9", json.dumps(rows))
    assert {*hidden} == ({"Secretly Renamed", "user-sid", "visitor-sid"} if level == "all" else set())
    if level == "shape":
        assert rows[0]["detail"]["key"] == "string"
        assert rows[0]["visitor"] == rows[1]["visitor"]


def test_a_filter_finds_the_events_of_a_visitor_also_the_refused_ones(shops: dict[str, tuple[Shop, Daemon]]) -> None:
    bodies = [{**EVENT, "anonymousId": "visitor-eve"}, {**EVENT, "userId": "visitor-eve"}, EVENT]
    for level in ("all", "shape"):
        shop, daemon = shops[level]
        with (
            EventStream(daemon, visitor="visitor-eve") as mine,
            EventStream(daemon, outcome=["limited", "invalid"]) as no,
        ):
            for body in bodies:
                assert daemon.post("/track", body, shop.public.id).status == 200
                assert daemon.post("/track", {**body, "data": 5}, shop.public.id).status == 400
            assert [row["outcome"] for row in mine.rows(4)] == ["accepted", "invalid"] * 2
            assert mine.came == 4
            assert {row["outcome"] for row in no.rows(3)} == {"invalid"}
    _, daemon = shops["none"]
    assert daemon.ops("/events?visitor=visitor-eve").status == 400


def test_a_client_that_connects_again_continues(shops: dict[str, tuple[Shop, Daemon]]) -> None:
    shop, daemon = shops["shape"]
    event = {**EVENT, "key": "Cart Viewed"}
    with EventStream(daemon, key="Cart Viewed"):  # so that the stream stays, however slow the machine is
        with EventStream(daemon, key="Cart Viewed") as stream:
            daemon.post("/track", event, shop.public.id)
            assert [row["number"] for row in stream.rows()] == [1]
        assert daemon.post("/batch", {"events": [event, EVENT, event]}, shop.public.id).status == 200
        queries: list[tuple[dict[str, str], dict[str, str]]] = [
            ({"Last-Event-ID": stream.last_id}, {}), ({}, {"after": stream.last_id}),
        ]  # fmt: skip
        for headers, query in queries:
            with EventStream(daemon, headers=headers, key="Cart Viewed", **query) as again:
                assert again.hello["continues"]
                assert [row["number"] for row in again.rows(2)] == [2, 3]
        for foreign in ("", "x", "0-1", f"{stream.last_id}x", "-", "é"):
            with EventStream(daemon, after=foreign, key="Cart Viewed") as again:
                assert not again.hello["continues"]
                assert [row["number"] for row in again.rows(3)] == [1, 2, 3]


@pytest.mark.parametrize("level", LEVELS)
def test_a_view_begins_with_the_last_events_of_the_journal(level: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"ops": f'show_data = "{level}"'})
    order = {"key": "Order Completed", "anonymousId": "visitor-bob", "data": {"order_id": "o", "total": 5}}
    with shop.serve() as daemon:
        members = [{**EVENT, "messageId": f"m-{number}"} for number in range(60)]
        assert daemon.post("/batch", {"events": [*members, order]}, shop.public.id).status == 200
        records = {each["id"]: each for each in shop.exported("--type", "event")}
        with EventStream(daemon, earlier="1") as stream:
            rows = stream.earlier
            assert [row["requestId"] for row in rows] == [*records][-50:]
            assert [row["key"] for row in rows] == ["Product Viewed"] * 49 + ["Order Completed"]
            details = [row.get("detail") for row in rows]
            assert (details == [*records.values()][-50:]) is (level == "all")
            assert ("sku-17" in stream.text) is (level == "all")
            assert daemon.post("/track", EVENT, shop.public.id).status == 200
            assert len(stream.rows()) == stream.came == 1  # the last events are not counted
        with EventStream(daemon, key="Order Completed", earlier="1") as stream:
            assert [row["requestId"] for row in stream.earlier] == [[*records][-1]]


def test_eight_can_look_and_a_place_is_free_again(shops: dict[str, tuple[Shop, Daemon]]) -> None:
    _, daemon = shops["all"]
    with ExitStack() as stack:
        for number in range(8):
            headers = stack.enter_context(EventStream(daemon, visitor=str(number))).answer.headers
        # A proxy neither keeps the events back nor compresses them together.
        assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-store, no-transform")
        for method in ("GET", "HEAD"):
            ninth = daemon.request(method, "/events", port=daemon.ops_port)
            assert (ninth.status, ninth.headers["retry-after"]) == (503, "10")
    wait_until(lambda: daemon.request("HEAD", "/events", port=daemon.ops_port).status == 200)


def test_a_reload_with_another_level_ends_the_streams_and_a_shutdown_does_at_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"ops": 'show_data = "all"', "http": 'shutdown_timeout = "300s"'})
    large = {"events": [{**EVENT, "data": {"sku": "x" * 15_000}}] * 100}
    with short_times(shutdown_grace=300.0), Daemon(shop.config) as daemon:
        with EventStream(daemon) as stream:
            shop.command("reload")
            daemon.post("/track", EVENT, shop.public.id)
            assert stream.rows()[0]["visitor"] == "visitor-ann"  # an unchanged level changes nothing
            shop.config.write_text(shop.config.read_text().replace('"all"', '"shape"'))
            shop.command("reload")
            stream.wait_for_end()
        with EventStream(daemon, after=stream.last_id) as again, EventStream(daemon) as unread:
            assert (again.hello["showData"], again.hello["continues"]) == ("shape", False)
            for _ in range(10):  # a viewer that reads nothing holds nobody up
                assert daemon.post("/batch", large, shop.public.id).status == 200
                again.rows()
            with socket.create_connection((daemon.host, daemon.port)):  # for which the shutdown waits
                os.kill(daemon.pid, signal.SIGTERM)
                again.wait_for_end()
                unread.wait_for_end()
                os.kill(daemon.pid, signal.SIGTERM)  # the second one ends the wait
                assert daemon.wait() == 0


def test_nothing_is_collected_before_somebody_looks(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
        with EventStream(daemon) as stream:
            assert daemon.post("/track", {**EVENT, "key": "Cart Viewed"}, shop.public.id).status == 200
            assert [row["key"] for row in stream.rows()] == ["Cart Viewed"]


# The view in a browser


class Look(Protocol):
    """Opens the view in a new tab."""

    def __call__(self, daemon: Daemon, fragment: str = "events", *, width: int = 1280) -> Tab: ...


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """The tabs are closed at the end: a browser has only six connections to a host, and a stream keeps one."""
    tabs: list[Tab] = []

    def open_tab(daemon: Daemon, fragment: str = "events", *, width: int = 1280) -> Tab:
        tab = browser.tab(width=width, height=812 if width < 800 else 900)
        tabs.append(tab)
        tab.open(f"http://127.0.0.1:{daemon.ops_port}/#{fragment}")
        tab.wait_for("typeof live !== 'undefined' && live.connected && latest !== null")
        return tab

    yield open_tab
    for tab in tabs:
        tab.close()


ROWS = """[...document.querySelectorAll('#live-rows tr')].map(row => [...row.cells].map(cell => cell.textContent))"""
COUNT = "document.getElementById('live-count').textContent"
REGIONS = "document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log]').length"


@pytest.mark.parametrize("width", [320, 1280])
def test_a_browser_shows_events_as_they_come_and_nothing_moves(
    width: int, shops: dict[str, tuple[Shop, Daemon]], look: Look
) -> None:
    shop, daemon = shops["shape"]
    tab = look(daemon, width=width)
    tab.wait_for("performance.now() > 1000")  # the fonts and the first figures are there
    tab.observe_shifts()
    for _ in range(3):
        send_every_kind(shop, daemon)
        assert daemon.post("/batch", {"events": [EVENT] * 400}, shop.public.id).status == 200
    tab.wait_for(f"document.querySelectorAll('#live-rows tr').length > 100 && /left out$/.test({COUNT})")
    assert tab.shifts() == []
    rows = tab.evaluate(ROWS)
    assert ["Product Viewed", "invalid", "/data/price: expected number, got string"] in [
        [*row[1:3], row[4]] for row in rows
    ]
    assert rows == sorted(rows, key=lambda row: row[0], reverse=True)
    text, received = tab.evaluate(f"[{COUNT}, live.received]")  # at once: further events may be on their way
    told = re.fullmatch(r"(\d+) came · (\d+) left out", text.replace(",", ""))
    assert told is not None
    assert int(told[1]) - int(told[2]) == received
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("document.getElementById('said').textContent") == ""
    assert tab.evaluate(REGIONS) == 1  # rows are not announced
    origin = f"http://127.0.0.1:{daemon.ops_port}"
    assert {url.partition("?")[0] for url in tab.requests} == {
        f"{origin}/{path}" for path in ("", "status.json", "events")
    }
    assert tab.complaints == []


def test_a_browser_opens_an_event_by_keyboard_and_stands_still_meanwhile(
    shops: dict[str, tuple[Shop, Daemon]], look: Look
) -> None:
    shop, daemon = shops["all"]
    tab = look(daemon, "events?event=key%3DCart%2BViewed")
    name = "<img src=x>\u202e\u200b" + "long" * 60
    first = {**EVENT, "key": "Cart Viewed", "anonymousId": name}
    assert daemon.post("/track", first, shop.public.id).status == 200
    tab.wait_for("document.querySelectorAll('#live-rows tr').length === 1")
    shown = tab.evaluate(ROWS)[0][3]
    assert shown.startswith("<img src=x>\\u202e\\u200blong")
    assert len(shown) < 100
    tab.evaluate("document.querySelector('.open').focus()")
    for _ in range(2):
        assert daemon.post("/track", {**first, "anonymousId": "second"}, shop.public.id).status == 200
    tab.wait_for(f"{COUNT}.startsWith('Stands still, 2 new')")
    assert len(tab.evaluate(ROWS)) == 1
    tab.press("Enter")
    tab.wait_for("document.getElementById('live-detail').open")
    assert ("dialog", "Cart Viewed, accepted") in tab.accessibility()
    text = tab.evaluate("document.getElementById('live-detail-json').textContent")
    (record,) = [each for each in shop.exported() if each["anonymousId"] == name]
    assert json.loads(text) == record
    assert "\u202e" not in text
    assert tab.evaluate("document.activeElement.id") == "live-detail-json"
    tab.press("Escape")
    tab.wait_for("!document.getElementById('live-detail').open && document.activeElement.className === 'open'")
    tab.evaluate("document.getElementById('live-pause').focus()")
    tab.wait_for("document.querySelectorAll('#live-rows tr').length === 3")
    assert tab.evaluate("document.querySelectorAll('#view-events img').length") == 0
    assert tab.complaints == []


def test_a_browser_pauses_and_selects_and_keeps_the_selection_in_the_address(
    shops: dict[str, tuple[Shop, Daemon]], look: Look
) -> None:
    shop, daemon = shops["shape"]
    tab = look(daemon)
    key = shop.public.id
    assert daemon.post("/track", {**EVENT, "anonymousId": "visitor-mia"}, key).status == 200
    last = daemon.post("/track", {**EVENT, "anonymousId": "visitor-zoe"}, key)
    assert last.status == 200
    tab.wait_for(f"live.events[0]?.requestId === '{last.headers['x-request-id']}' && live.waiting.length === 0")
    tab.evaluate("document.getElementById('live-pause').click()")
    before = tab.evaluate(ROWS)
    assert daemon.post("/track", {**EVENT, "data": 1}, key).status == 400
    tab.wait_for(f"{COUNT}.startsWith('Stands still, 1 new')")
    assert tab.evaluate(ROWS) == before
    assert tab.evaluate("document.getElementById('live-pause').textContent") == "Continue"
    tab.evaluate("document.getElementById('live-pause').click()")
    tab.wait_for(f"{ROWS}[0][2] === 'invalid'")
    box = "document.getElementById('live-visitor')"
    tab.evaluate(f"{box}.value = 'visitor-mia', {box}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    tab.wait_for("document.querySelectorAll('#live-rows tr').length === 1")  # earlier events are selected, too
    assert tab.evaluate("location.hash") == "#events?visitor=visitor-mia"
    assert "visitor-mia" not in json.dumps(tab.evaluate(ROWS))
    assert daemon.post("/track", {**EVENT, "anonymousId": "visitor-mia", "data": 1}, key).status == 400
    tab.wait_for(f"{ROWS}.map(row => row[2]).join() === 'invalid,accepted'")
    again = look(daemon, "events?outcome=refused&visitor=visitor-mia")
    assert daemon.post("/track", {**EVENT, "anonymousId": "visitor-mia", "data": 2}, key).status == 400
    again.wait_for(f"{ROWS}.length && {ROWS}.every(row => row[2] === 'invalid')")
    values = "['live-outcome', 'live-visitor'].map(id => document.getElementById(id).value)"
    assert again.evaluate(values) == ["refused", "visitor-mia"]
    assert tab.complaints == again.complaints == []


def test_a_browser_hides_what_is_not_shown_and_leaves_the_stream_with_the_view(
    shops: dict[str, tuple[Shop, Daemon]], look: Look
) -> None:
    shop, daemon = shops["none"]
    tab = look(daemon)
    assert daemon.post("/track", {**EVENT, "data": 1}, shop.public.id).status == 400
    # A stream that another viewer has just left may still have its rows.
    tab.wait_for("document.querySelector('#live-rows tr')?.textContent.includes('/data: type')")
    assert tab.evaluate(ROWS)[0][1:] == ["Product Viewed", "invalid", "", "/data: type"]
    for element in (".open", "#live-visitor"):
        assert tab.evaluate(f"document.querySelector('{element}').disabled")
    tab.evaluate("location.hash = '#overview'")
    tab.wait_for("live.source === null")
    tab.evaluate("location.hash = '#events'")
    tab.wait_for("live.connected && live.events.length >= 1")  # it continues where it was
    assert tab.complaints == []


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Shop, Daemon]]:
    """A daemon without the hundreds of rows of other tests, because axe looks at each cell."""
    shop = Shop(tmp_path, {"http": 'shutdown_timeout = "100ms"'})
    with shop.serve() as daemon:
        yield shop, daemon


def test_live_events_have_contrast_roles_and_names(own: tuple[Shop, Daemon], look: Look) -> None:
    shop, daemon = own
    for width in (390, 1280):
        tab = look(daemon, width=width)
        send_every_kind(shop, daemon)
        tab.wait_for("document.querySelectorAll('#live-rows tr').length >= 12")
        assert tab.violations() == []
        tree = tab.accessibility()
        roles = {role for role, _ in tree}
        assert {"table", "columnheader", "rowheader", "cell", "combobox", "searchbox", "button"} <= roles
        assert all(name for role, name in tree if role in {"button", "combobox", "searchbox", "region", "table"})
        assert any(re.fullmatch(r"[\d:.]+, Product Viewed, invalid", name) for role, name in tree if role == "button")
