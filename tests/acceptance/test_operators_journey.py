"""The views of journeys and of dead letters on the operators' page, over HTTP and in a browser."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser, Tab
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.journeys import DAY, HOUR, IDENTIFY, MINUTE, Sender, attributions
from tests.support.redis_server import redis_server
from tests.support.redis_shop import RedisShop
from tests.support.sink_desk import Desk, delivered

HOSTILE = '<img src=x onerror=boom()>\u202e\u0007"'
TERM = "words that somebody searched for"


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def sold(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shop, Daemon]]:
    """A daemon with the journey of a user on two devices to an order, a direct order, and a waiting refund."""
    folder = tmp_path_factory.mktemp("sold")
    with ExitStack() as running:
        if request.param == "sqlite":
            shop = Shop(folder)
        else:
            server = redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"})
            shop = RedisShop(folder, redis=running.enter_context(server))
        daemon = running.enter_context(shop.serve())
        fill(shop, daemon)
        yield shop, daemon


def fill(shop: Shop, daemon: Daemon) -> None:
    sender = Sender(shop, daemon)
    newsletter = {"source": "newsletter", "medium": "email", "name": "autumn", "term": TERM}
    sender.touch("laptop", 8 * DAY, "search")
    sender.touch("laptop", 2 * DAY, "", context={"campaign": newsletter})
    sender.touch("phone", 3 * HOUR, HOSTILE)
    sender.send(IDENTIFY, "laptop", userId="ada@shop.example", traits={"email": "ada@shop.example"})
    sender.send(IDENTIFY, "phone", userId="ada@shop.example")
    sender.touch("phone", 5 * MINUTE, "mail", dispatchId="mail-7")
    sender.order("phone", "o-1", revenue=40, currency="EUR")
    sender.order("backend", "o-1", "Order Refunded", revenue=10, currency="EUR")
    sender.order("nobody", "o-2", total=5)
    sender.order("backend", "o-3", "Order Refunded", revenue=1, currency=HOSTILE)
    attributions(shop, ["o-1", "o-2"])
    waiting, pending = 'reversals_total{result="waiting"}', 'ingestd_consumer_pending{consumer="attribution"}'
    wait_until(lambda: daemon.metric(f"ingestd_attribution_{waiting}") == 1 and daemon.metric(pending) == 0)


def journey(daemon: Daemon, query: str) -> Any:
    answer = daemon.ops(f"/journey.json?{query}")
    assert answer.status == 200, answer.body
    return answer.json()


def facts(order: Any) -> dict[str, str]:
    return {each["name"]: each["value"] for each in order["facts"]}


def opened(browser: Browser, daemon: Daemon, fragment: str, *, width: int = 1280) -> Tab:
    tab = browser.tab(width=width, height=812 if width < 800 else 900)
    tab.open(f"http://127.0.0.1:{daemon.ops_port}/#{fragment}")
    return tab


def test_an_order_has_its_journey_as_attribution_show_tells_it(sold: tuple[Shop, Daemon]) -> None:
    shop, daemon = sold
    page = journey(daemon, "order=o-1")
    record, reversal = map(json.loads, shop.command("attribution", "show", "o-1", "--json").splitlines())
    (order,) = page["orders"]
    assert order["title"] == "Order of shop: 40 EUR"
    told = facts(order)
    assert told["Order"] == "o-1"
    assert re.fullmatch("visitor #[0-9a-f]{8}", told["Visitor"])
    assert re.fullmatch("user #[0-9a-f]{8}", told["User"])
    assert (told["Order event"], told["Attribution"]) == (record["orderEventId"], record["id"])
    assert told["Reversed"] == "10 EUR in 1 reversal"
    rows = order["tables"][0]["rows"]
    assert [row[1:5] for row in rows] == [
        ["Email", "2.0 d", "device 2", ""],
        ["Unassigned", "3.0 h", "this device", ""],
        ["Unassigned", "5.0 min", "this device", "credited"],
    ]
    shown = shop.command("attribution", "show", "o-1")
    for row in rows:
        assert re.search(rf"{re.escape(row[2])} before  {re.escape(row[0])}.* \({row[3]}\)$", shown, re.MULTILINE)
    for place, model in enumerate(record["credits"], 5):
        weights = {each["eventId"]: each["weight"] for each in record["credits"][model]}
        expected = [round(100 * weights.get(each["eventId"], 0), 1) for each in record["touchpoints"]]
        assert [row[place] for row in rows] == expected
    notes = " ".join(order["notes"])
    assert "Credited by last_touch: it is the last one before the order." in notes
    assert f"because of {reversal['cause']}" in notes
    assert [(each["kind"], each["removed"]) for each in page["moments"]] == [
        *[("touchpoint", False)] * 4, ("order", False), ("refund", False),
    ]  # fmt: skip
    assert [len(each["events"]) for each in page["sessions"]] == [3, 4]
    assert page["sessions"][1]["visitor"] == told["Visitor"] != page["sessions"][0]["visitor"]
    assert (page["searched"]["limit"], page["searched"]["next"]) == (None, None)


def test_a_user_and_a_visitor_have_their_journeys(sold: tuple[Shop, Daemon]) -> None:
    _, daemon = sold
    user = journey(daemon, "user=ada@shop.example&tenant=shop")
    assert {each["user"] for each in user["sessions"]} == {"ada@shop.example"}
    assert [len(each["events"]) for each in user["sessions"]] == [3, 4]
    (order,) = user["orders"]
    assert re.fullmatch("order #[0-9a-f]{8}", facts(order)["Order"])
    visitor = journey(daemon, "visitor=laptop")
    assert [each["visitor"] for each in visitor["sessions"]] == ["laptop"]
    assert "linked this visitor of shop to a user" in " ".join(visitor["notes"])
    for query in ("visitor=laptop&tenant=other", "user=Ada@shop.example", "visitor=lap", "order=o-1%20"):
        nothing = journey(daemon, query)
        assert (nothing["sessions"], nothing["moments"], nothing["orders"]) == ([], [], [])


def test_orders_that_are_not_attributed_are_explained(sold: tuple[Shop, Daemon]) -> None:
    _, daemon = sold
    assert "No touchpoint in the 7 days before it: direct." in journey(daemon, "order=o-2")["orders"][0]["notes"][0]
    waiting = " ".join(journey(daemon, "order=o-3")["notes"])
    assert "This order is not attributed" in waiting
    assert "waits for its order: 1 " in waiting
    assert "\u202e" not in waiting


def test_ids_and_free_texts_are_hidden_unless_they_were_typed(sold: tuple[Shop, Daemon]) -> None:
    _, daemon = sold
    for query in ("order=o-1", "order=o-2", "visitor=laptop", "visitor=phone"):
        text = json.dumps(journey(daemon, query))
        typed = query.partition("=")[2]
        hidden = {"laptop", "phone", "ada@shop.example", "mail-7", TERM, '"o-1"', '"o-2"', "nobody"}
        assert [each for each in hidden if each in text and each.strip('"') != typed] == []


def test_a_question_that_makes_no_sense_is_refused(sold: tuple[Shop, Daemon]) -> None:
    _, daemon = sold
    for query in ("", "order=", "order=a&user=b", "visitor=undefined", "order=" + "x" * 1001, "order=o&before=-1"):
        answer = daemon.ops(f"/journey.json?{query}")
        assert answer.status == 400
        assert answer.json()["error"].endswith(".")
    assert daemon.ops("/journey.json?order=%FF").status == 400
    for path in ("/journey.json?order=o-1", "/dead-letters.json"):
        assert daemon.request("GET", path).status == 404  # the public listener
        assert daemon.request("POST", path, b"{}", port=daemon.ops_port).status == 405
        head = daemon.request("HEAD", path.replace("?", "/?"), port=daemon.ops_port)
        assert (head.status, head.body) == (200, b"")
        assert daemon.request("GET", path, port=daemon.ops_port, headers={"Host": "evil.example"}).status == 421
        elsewhere = {"User-Agent": "Mozilla/5.0"}
        assert daemon.request("GET", path, port=daemon.ops_port, headers=elsewhere).status == 403
        headers = daemon.ops(path).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
        assert "access-control-allow-origin" not in headers
    assert daemon.ops("/dead-letters.json?sink=nothing").status == 404


def test_too_many_simultaneous_questions_are_put_off(sold: tuple[Shop, Daemon]) -> None:
    _, daemon = sold
    with ThreadPoolExecutor(40) as pool:
        answers = [*pool.map(lambda _: daemon.ops("/journey.json?order=o-1"), range(120))]
    statuses = {answer.status for answer in answers}
    assert statuses <= {200, 503}
    assert 200 in statuses
    assert all(answer.headers["retry-after"] == "5" for answer in answers if answer.status == 503)
    assert len({answer.body for answer in answers if answer.status == 200}) <= len(answers)


SHOWN = "document.getElementById('journey-result')?.hidden === false"


# The number of marks that are partly outside of the drawing.
CUT_MARKS = """(() => {
  const { left, right } = document.querySelector("#journey-drawing svg").getBoundingClientRect();
  const marks = [...document.querySelectorAll("#journey-drawing circle")].map((each) => each.getBoundingClientRect());
  return marks.filter((each) => each.left < left || each.right > right).length;
})()"""


@pytest.mark.parametrize("width", [320, 800, 1280])
def test_a_browser_shows_a_journey_that_is_typed(width: int, sold: tuple[Shop, Daemon], browser: Browser) -> None:
    _, daemon = sold
    tab = opened(browser, daemon, "journey", width=width)
    tab.wait_for("document.getElementById('journey-id')?.checkVisibility()")
    tab.evaluate("document.getElementById('journey-id').focus()")
    tab.call("Input.insertText", text="o-1")
    tab.press("Enter")
    tab.wait_for(SHOWN)
    assert tab.evaluate("location.hash") == "#journey?order=o-1"
    assert tab.evaluate("document.getElementById('said').textContent") == "2 sessions, 6 moments, 1 explained order."
    assert tab.evaluate("document.querySelectorAll('#journey-line > li.session').length") == 2
    text = tab.evaluate("document.getElementById('view-journey').textContent")
    assert "Order of shop: 40 EUR" in text
    assert "newsletter / email / autumn" in text
    assert "<img src=x onerror=boom()>" in text
    assert tab.evaluate("document.querySelectorAll('#view-journey img').length") == 0
    assert "\u202e" not in text
    tab.evaluate("document.querySelector('#journey-line summary').click()")
    tab.wait_for("document.querySelectorAll('#journey-line td').length >= 3")
    assert tab.evaluate("document.querySelectorAll('#journey-drawing circle').length") == 6
    assert tab.evaluate(CUT_MARKS) == 0
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.evaluate("location.hash = '#journey?user=ada@shop.example'")
    tab.wait_for(f"{SHOWN} && document.getElementById('journey-kind').value === 'user'")
    assert tab.evaluate("document.getElementById('journey-id').value") == "ada@shop.example"
    tab.evaluate("location.hash = '#journey?order=none'")
    tab.wait_for("document.getElementById('journey-told').textContent.includes('client')")
    assert tab.evaluate("document.getElementById('journey-result').hidden")
    assert {re.sub(r"^http://[^/]*|\?.*", "", url) for url in tab.requests} == {
        "/", "/status.json", "/orders.json", "/journey.json",
    }  # fmt: skip
    assert [each for each in tab.complaints if "400" not in each] == []


def test_a_screen_reader_finds_the_journey_as_a_list(sold: tuple[Shop, Daemon], browser: Browser) -> None:
    tab = opened(browser, sold[1], "journey?order=o-1")
    tab.wait_for(SHOWN)
    tree = tab.accessibility()
    named = {role: [name for each, name in tree if each == role] for role, _ in tree}
    assert {"search", "list", "listitem", "table", "columnheader", "rowheader", "heading"} <= {*named}
    assert "Time line, oldest first, in UTC" in named["heading"]
    assert "Touchpoints in the 7 days before it, oldest first" in named["table"]
    for role in ("combobox", "textbox", "button", "table", "columnheader", "heading", "region"):
        assert all(named[role]), f"a {role} has no name"
    assert not any(
        role in {"image", "graphics-document", "SvgRoot"} for role, _ in tree
    )  # the drawing repeats the list


def test_a_journey_breaks_no_rule_of_accessibility(sold: tuple[Shop, Daemon], browser: Browser) -> None:
    width = 390 if isinstance(sold[0], RedisShop) else 1280  # the store changes nothing that a width would
    tab = opened(browser, sold[1], "journey?order=o-1", width=width)
    tab.wait_for(SHOWN)
    tab.evaluate("document.querySelectorAll('#view-journey details').forEach((each) => (each.open = true))")
    tab.wait_for("document.querySelectorAll('#journey-line td').length >= 3")
    assert tab.violations() == []
    tab.close()


@pytest.mark.usefixtures("told_sink")
def test_dead_letters_can_be_read_and_open_by_keyboard(desk: Desk, browser: Browser) -> None:
    desk.crm.tell(reject=dict.fromkeys(range(1, 5), "the column is too long"))
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, *range(1, 5))
        for width in (390, 1280):
            tab = opened(browser, daemon, "dead-letters", width=width)
            tab.wait_for("document.querySelectorAll('#dead-letters-list li').length === 4")
            first = "document.querySelector('#dead-letters-list summary')"
            tab.evaluate(f"{first}.focus()")
            tab.press("Enter")
            tab.wait_for(f"{first}.parentElement.open")
            assert tab.violations() == []
            tree = tab.accessibility()
            assert ("heading", "Dead letter 4: Page View") in tree
            assert {"list", "listitem", "columnheader", "rowheader"} <= {role for role, _ in tree}
            for role in ("button", "combobox", "heading", "table", "region"):
                names = [name for each, name in tree if each == role]
                assert names, f"there is no {role}"
                assert all(names), f"a {role} has no name"
            tab.close()
        desk.crm.tell()


@pytest.mark.usefixtures("told_sink")
def test_dead_letters_have_reasons_and_commands_that_work(desk: Desk, browser: Browser) -> None:
    numbers = range(1, 61)
    reason = "the column 'secret value' is too long"
    with desk.shop.serve() as daemon:
        desk.crm.tell(reject=dict.fromkeys(numbers, reason))
        delivered(desk, daemon, *numbers)
        listed = [json.loads(line) for line in desk.run("dead-letters", "list", "crm", "--json").splitlines()]
        page = daemon.ops("/dead-letters.json").json()
        assert (page["sink"], page["next"]) == ("crm", 11)
        rest = daemon.ops("/dead-letters.json?sink=crm&before=11").json()
        assert rest["next"] is None
        letters = [*page["letters"], *rest["letters"]]
        names = {"recordId": "id"} | {each: each for each in ("number", "at", "type", "key", "attempts", "receivedAt")}
        assert [{new: each[name] for name, new in names.items()} for each in letters] == [
            {name: each[name] for name in names.values()} for each in reversed(listed)
        ]
        assert {each["reason"] for each in letters} == {"the column '…' is too long"}
        assert {each["sink"]: each["deadLetters"] for each in page["sinks"]} == {"archive": 0, "crm": 60}

        for width in (320, 1280):
            tab = opened(browser, daemon, "dead-letters", width=width)
            tab.wait_for("document.querySelectorAll('#dead-letters-list li').length === 50")
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            first = "document.querySelector('#dead-letters-list li')"
            assert tab.evaluate(f"{first}.querySelector('h3').textContent") == "Dead letter 60: Page View"
            tab.evaluate(f"{first}.querySelector('summary').click()")
            tab.evaluate(f"{first}.querySelector('button').click()")
            tab.wait_for("/^Show: the command is (copied|selected)/.test(document.getElementById('said').textContent)")
            tab.evaluate("document.getElementById('dead-letters-older').click()")
            tab.wait_for("document.querySelectorAll('#dead-letters-list li').length === 60")
            assert tab.evaluate("document.getElementById('dead-letters-older').hidden")
            assert all(name for role, name in tab.accessibility() if role in {"button", "combobox", "heading", "table"})
            assert tab.complaints == []

        desk.crm.tell()
        command = shlex.split(letters[0]["commands"]["retry"])
        assert command[-2:] == ["--config", str(desk.shop.config)]
        done = run_ingestd(*command[1:-2], config=desk.shop.config)
        assert done.stdout == "1 of 1 taken by crm\n"
        command = shlex.split(page["sinks"][1]["commands"]["retry"])
        assert run_ingestd(*command[1:-2], config=desk.shop.config).stdout == "59 of 59 taken by crm\n"
        assert daemon.ops("/dead-letters.json?sink=crm").json()["letters"] == []


def test_after_a_refusal_dead_letters_can_be_asked_for_again(desk: Desk, browser: Browser) -> None:
    with desk.shop.serve() as daemon:
        tab = opened(browser, daemon, "dead-letters?sink=nothing")
        tab.wait_for("document.getElementById('dead-letters-told')?.textContent === 'There is no sink of this name.'")
        button = "document.querySelector('#dead-letters-form button')"
        assert tab.evaluate(f"{button}.checkVisibility()")
        tab.evaluate(f"{button}.click()")
        tab.wait_for("document.getElementById('dead-letters-sink').value !== ''")


@pytest.mark.parametrize("level", ["all", "none"])
def test_show_data_sets_how_much_a_journey_shows(level: str, tmp_path: Path, browser: Browser) -> None:
    shop = Shop(tmp_path, {"ops": f'show_data = "{level}"'})
    with shop.serve() as daemon:
        fill(shop, daemon)
        if level == "none":
            answer = daemon.ops("/journey.json?order=o-1")
            assert (answer.status, "show_data" in answer.json()["error"]) == (403, True)
            return
        page = journey(daemon, "order=o-1")
        told = facts(page["orders"][0])
        assert (told["Visitor"], told["User"]) == ("phone", "ada@shop.example")
        assert [each["detail"] for each in page["moments"]] == ["", TERM, "", "dispatch mail-7", "o-1", "o-1"]
        tab = opened(browser, daemon, "journey?order=o-1")
        tab.wait_for(SHOWN)
        link = "document.querySelector('#journey-line li.session a')"
        assert tab.evaluate(f"{link}.textContent") == "laptop"
        tab.evaluate(f"{link}.click()")
        tab.wait_for("document.getElementById('journey-told').textContent.startsWith('1 session,')")
        assert tab.evaluate("[location.hash, document.getElementById('journey-id').value]") == [
            "#journey?visitor=laptop&tenant=shop", "laptop",
        ]  # fmt: skip
        assert tab.complaints == []
