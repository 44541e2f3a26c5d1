"""`ingestd attribution show|report` with a daemon and without one, and after records have been removed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest

from ingestd.api.times import format_time, now
from ingestd.support.terminal import printable
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Key, Shop, run_ingestd
from tests.support.forked import INGESTD, run
from tests.support.terminal import shown_on_terminal

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR

EXCLUSIONS = """
exclude_sources = ["paypal"]
exclude_mediums = ["internal"]
exclude_domains = ["shop.example"]
"""
HOSTILE = '=HYPERLINK("x")\x1b[31m\u202e'


class Filler:
    """Sends events with an age before the order, which was completed an hour ago."""

    def __init__(self, shop: Shop, daemon: Daemon) -> None:
        self._shop = shop
        self._daemon = daemon
        self._completed = now() - HOUR

    def touch(self, visitor: str, age: int, campaign: Mapping[str, str] | None, **further: Any) -> str:
        """Sends a touch and returns its event id."""
        context = {"campaign": campaign} if campaign is not None else {}
        page = further.pop("page", None)
        if page is not None:
            context["page"] = page
        # In one session, a repeated campaign would be one arrival.
        return self._send("Page View", visitor, {}, age, context=context, sessionId=str(uuid4()), **further)

    def order(self, visitor: str, key: str = "Order Completed", **data: Any) -> str:
        return self._send(key, visitor, data, 0)

    def _send(self, key: str, visitor: str, data: Mapping[str, Any], age: int, **further: Any) -> str:
        timestamp = format_time(self._completed - age)
        event = {"key": key, "anonymousId": visitor, "data": data, "timestamp": timestamp, **further}
        answer = self._daemon.post_signed(event, self._shop.server)
        assert answer.status == 200
        return answer.headers["x-request-id"]

    def link(self, visitor: str, user: str) -> None:
        body = {"anonymousId": visitor, "userId": user}
        assert self._daemon.post("/identify/public", body, self._shop.public.id).status == 200


def derived(shop: Shop, order_id: str | None, tenant: str = "shop") -> list[dict[str, Any]]:
    """The derived records of an order in the archive. The journal has them too, then."""
    return [
        record
        for record in shop.archived()
        if record["type"].startswith("attribution") and (record["orderId"], record["tenant"]) == (order_id, tenant)
    ]


def fill(shop: Shop, daemon: Daemon, other: Key) -> dict[str, str]:
    """Ada's journey over two devices, and some other orders; returns the ids of events by name."""
    filler = Filler(shop, daemon)
    ids = {}
    filler.link("laptop", "ada")
    filler.link("phone", "ada")
    google = {"source": "google", "medium": "cpc", "name": "shoes"}
    ids["before_window"] = filler.touch("laptop", 8 * DAY, google)
    ids["first"] = filler.touch("phone", 2 * DAY, {"source": "newsletter", "medium": "email", "name": "spring"})
    ids["middle"] = filler.touch("laptop", 3 * HOUR, google)
    ids["last"] = filler.touch("laptop", 5 * MINUTE, None, dispatchId="mail-7")
    ids["after_order"] = filler.touch("phone", -10 * MINUTE, google)
    ids["excluded_source"] = filler.touch("laptop", HOUR, {"source": "PayPal"})
    ids["excluded_medium"] = filler.touch("phone", HOUR, {"source": "x", "medium": "internal"})
    ids["excluded_domain"] = filler.touch("laptop", HOUR, google, page={"referrer": "https://www.shop.example/cart"})
    ids["order"] = filler.order("laptop", order_id="o-1", revenue=40, total=50, currency="EUR")
    ids["refund"] = filler.order("laptop", "Order Refunded", order_id="o-1", revenue=10)
    early = {"order_id": "o-late", "value": 7.5, "currency": HOSTILE}
    ids["early"] = filler.order("backend", "Order Refunded", **early)
    ids["early_cancel"] = filler.order("backend", "Order Cancelled", order_id="o-late")
    filler.order("nobody", order_id="o-direct", total=20, currency="EUR")
    filler.touch("stranger", DAY, {"source": HOSTILE})
    ids["nameless"] = filler.order("stranger", revenue=0.5, currency="USD")
    for tenant in (shop.public, other):
        order = {"key": "Order Completed", "anonymousId": "twin", "data": {"order_id": "o-twin", "revenue": 7}}
        assert daemon.post("/track", order, tenant.id).status == 200
    wait_until(lambda: len(derived(shop, "o-1")) == 2)
    wait_until(lambda: len(derived(shop, "o-twin")) == len(derived(shop, "o-twin", "other")) == 1)
    return ids


COLUMNS = (
    "source,currency,orders,revenue,reversed,net,kind,sessions,visitors,average,conversion,new,returning,assisted"
    ",cost,clicks,impressions,roas,cost_per_order"
)
COMMANDS = [("show", "o-1"), ("show", "o-1", "--json"), ("report", "--since", "1h")]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, dict[str, str]]:
    """A shop without its daemon, its event ids by name, and outputs from the daemon's lifetime as `beside …`."""
    shop = Shop(tmp_path_factory.mktemp("shop"), {"plugins.attribution": EXCLUSIONS})
    other = shop.create_key("public", "other")
    with shop.serve() as daemon:
        ids = fill(shop, daemon, other)
        for command in COMMANDS:
            ids[f"beside {command}"] = shop.command("attribution", *command)
    return shop, ids


def refused(shop: Shop, *arguments: str) -> str:
    """Runs a command that must fail, and returns its message of one line."""
    done = run_ingestd("attribution", *arguments, config=shop.config)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    [line] = done.stderr.splitlines()
    return line


def misused(shop: Shop, *arguments: str) -> str:
    done = run_ingestd("attribution", *arguments, config=shop.config)
    assert done.returncode == 2
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_output_is_the_same_with_and_without_a_daemon(
    filled: tuple[Shop, dict[str, str]], command: tuple[str, ...]
) -> None:
    shop, ids = filled
    assert shop.command("attribution", *command) == ids[f"beside {command}"]


def test_the_journey_of_an_order(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, ids = filled
    record, reversal = derived(shop, "o-1")
    lines = shop.command("attribution", "show", "o-1").splitlines()
    assert lines[:7] == [
        "order o-1 of shop: 40 EUR",
        f"  attribution  {record['id']}",
        f"  order event  {ids['order']}",
        f"  received     {record['decidedAt']}",
        "  visitor      laptop",
        "  user         ada",
        "  touchpoints in the 7 days before it, oldest first:",
    ]
    touches = {line.partition(" before  ")[2]: number for number, line in enumerate(lines) if " before  " in line}
    assert [*touches] == [
        "newsletter / email / spring [Email]  (device 2)",
        "google / cpc / shoes [Paid Search]  (this device)",
        "dispatch mail-7 [Unassigned]  (this device)",
    ]
    first, middle, last = touches.values()
    assert [lines[each].partition(" before ")[0].split() for each in (first, middle, last)] == [
        ["2.0", "d"], ["3.0", "h"], ["→", "5.0", "min"],
    ]  # fmt: skip
    assert [shares(lines[each + 1]) for each in (first, middle, last)] == [
        {"first_touch": 100, "linear": 33, "position_based": 40, "time_decay": 29},
        {"linear": 33, "position_based": 20, "time_decay": 35},
        {"last_touch": 100, "linear": 33, "position_based": 40, "time_decay": 36},
    ]
    assert "  credited by last_touch: it is the last one before the order" in lines
    ignored = {reason: line for reason, event_id in ids.items() for line in lines if f"event {event_id} " in line}
    assert {reason: line.partition(" does not count: ")[2] for reason, line in ignored.items()} == {
        "before_window": "older than the window",
        "after_order": "later than the order",
        "excluded_source": "its source is excluded",
        "excluded_medium": "its medium is excluded",
        "excluded_domain": "it came from one of the shop's own domains",
    }
    assert lines[-1] == f"  refund at {reversal['decidedAt']}: 10 EUR reversed, because of {ids['refund']}"


def shares(line: str) -> dict[str, int]:
    """Per cents by model."""
    return {model: int(share) for model, share in re.findall(r"(\w+) (\d+)%", line)}


def test_the_journey_as_records(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, ids = filled
    printed = shop.command("attribution", "show", "o-1", "--json")
    assert [json.loads(line) for line in printed.splitlines()] == derived(shop, "o-1")
    attribution, reversal = derived(shop, "o-1")
    assert attribution["touchpoint"]["eventId"] == ids["last"]
    assert [each["eventId"] for each in attribution["touchpoints"]] == [
        ids[name] for name in ("first", "middle", "last")
    ]
    assert {each["reason"]: each["eventId"] for each in attribution["ignored"]} == {
        reason: ids[reason]
        for reason in ("before_window", "after_order", "excluded_source", "excluded_medium", "excluded_domain")
    }
    assert (reversal["attributionId"], reversal["cause"]) == (attribution["id"], ids["refund"])


def test_an_order_without_touchpoints_is_direct(filled: tuple[Shop, dict[str, str]]) -> None:
    lines = filled[0].command("attribution", "show", "o-direct").splitlines()
    assert lines[0] == "order o-direct of shop: 20 EUR"
    assert lines[-2:] == ["  user         none", "  no touchpoint in the 7 days before it: direct"]


def test_an_order_without_id_is_named_by_its_event_and_steers_no_terminal(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, ids = filled
    printed = shop.command("attribution", "show", ids["nameless"])
    assert printed.startswith("order without id of shop: 0.50 USD\n")
    hostile = '=HYPERLINK("x")\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}'
    assert f"{hostile} [Unassigned]  (this device)" in printed
    assert all(line.isprintable() for line in printed.split("\n"))
    [record] = [json.loads(shop.command("attribution", "show", ids["nameless"], "--json"))]
    assert (record["orderId"], record["orderEventId"]) == (None, ids["nameless"])
    assert record["touchpoint"]["source"] == HOSTILE
    # An order with an id is found only by that id.
    assert "is not attributed" in refused(shop, "show", ids["order"])


def test_an_order_id_of_two_shops_needs_the_tenant(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, _ = filled
    line = refused(shop, "show", "o-twin")
    assert re.search(r"\bother, shop\b", line)
    assert "--tenant" in line
    for tenant in ("shop", "other"):
        record = json.loads(shop.command("attribution", "show", "o-twin", "--tenant", tenant, "--json"))
        assert [record] == derived(shop, "o-twin", tenant)


def test_an_unknown_order_is_reported(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, _ = filled
    expected = "the order 'o-?' is not attributed: it has not been sent, or attribution has not read it yet"
    assert refused(shop, "show", "o-?").endswith(expected)
    for tenant in ("other", "none"):
        assert "is not attributed" in refused(shop, "show", "o-1", "--tenant", tenant)


def test_refunds_that_wait_for_their_order_are_shown(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, ids = filled
    for tenant in ((), ("--tenant", "shop")):
        line = refused(shop, "show", "o-late", *tenant)
        assert "the order 'o-late' is not attributed" in line
        assert f"; the refund {ids['early']} of shop waits for its order: 7.50 " in line
        assert f"; the cancellation {ids['early_cancel']} of shop waits for its order: the rest of the order, " in line
        assert line.isprintable()
    assert "waits" not in refused(shop, "show", "o-late", "--tenant", "other")


def test_the_report(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, _ = filled
    command = ("attribution", "report", "--since", "1h", "--tenant", "shop", "--model", "linear")
    lines = shown_on_terminal(*command, config=shop.config).splitlines()
    assert all(len(line) <= 80 for line in lines)
    starts = [line.split("  ")[0] for line in lines]
    assert starts == [
        "source", "(direct)", "total", "",
        "source", "(direct)", "google", "(not set)", "newsletter",
        '=HYPERLINK("x")\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}', "total", "",
        "source", '=HYPERLINK("x")\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}', "total",
    ]  # fmt: skip
    assert [line.rpartition("  ")[2] for line in lines if line.startswith("source")] == ["no currency", "EUR", "USD"]
    total = next(line for line in lines[4:] if line.startswith("total"))
    assert [each for each in total.split() if "." in each][:2] == ["2.00", "60.00"]
    assert "…" not in shop.command(*command)  # names are not shortened in a pipe


@pytest.mark.parametrize(
    ("by", "model", "campaigns"),
    [
        ((), (), {None: (1, 40, 10, 30)}),
        (("--by", "medium"), ("--model", "first_touch"), {"email": (1, 40, 10, 30)}),
        (
            ("--by", "name"),
            ("--model", "position_based"),
            {None: (0.4, 16, 4, 12), "spring": (0.4, 16, 4, 12), "shoes": (0.2, 8, 2, 6)},
        ),
    ],
)
def test_the_report_by_field_and_model(
    filled: tuple[Shop, dict[str, str]],
    by: tuple[str, ...],
    model: tuple[str, ...],
    campaigns: dict[str | None, tuple[float, ...]],
) -> None:
    shop, _ = filled
    printed = shop.command("attribution", "report", "--since", "1h", "--tenant", "shop", "--json", *by, *model)
    rows = [json.loads(line) for line in printed.splitlines()]
    names, column = ("orders", "revenue", "reversed", "net"), by[1] if by else "source"
    assert {
        row[column]: tuple(row[name] for name in names)
        for row in rows
        if row["currency"] == "EUR" and row["kind"] == "campaign" and row["orders"]
    } == campaigns
    direct = {row["currency"]: row["net"] for row in rows if (row["kind"], row[column]) == ("direct", "(direct)")}
    assert direct == {"EUR": 20, None: 7}


def test_the_report_as_csv(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, _ = filled
    command = [INGESTD, "attribution", "report", "--since", "1h", "--csv", "--config", str(shop.config)]
    printed = run(command).stdout
    lines = list(csv.reader(StringIO(printed.decode(), newline=""), strict=True))
    assert printed.count(b"\n") == printed.count(b"\r\n") == len(lines)  # line ends of RFC 4180
    assert ",".join(lines[0]) == COLUMNS
    assert [line[:7] for line in lines[1:] if line[2] != "0"] == [
        ["(direct)", "", "2", "14", "0", "14", "direct"],
        ["", "EUR", "1", "40", "10", "30", "campaign"],
        ["(direct)", "EUR", "1", "20", "0", "20", "direct"],
        [f"'{printable(HOSTILE)}", "USD", "1", "0.5", "0", "0.5", "campaign"],
    ]
    # Sessions stand in the rows of the currency with most orders, here none, also of campaigns without an order.
    records = [json.loads(line) for line in shop.command("events", "export").splitlines()]
    told = {"Order Updated", "Order Refunded", "Order Cancelled"}  # signed, these are no visits
    sessions = {
        record["sessionId"]
        for record in records
        if record["type"] in {"event", "identify"} and not (record["signed"] and record.get("key") in told)
    }
    assert sum(int(line[7] or 0) for line in lines[1:]) == len(sessions)


def test_the_report_of_one_shop_and_of_a_time(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, _ = filled
    one = json.loads(shop.command("attribution", "report", "--since", "1h", "--json", "--tenant", "other"))
    amounts = {"currency": None, "orders": 1, "revenue": 7, "reversed": 0, "net": 7}
    visits = {"sessions": 1, "visitors": 1, "average": 7, "conversion": 1.0, "new": 1, "returning": 0, "assisted": 0}
    costs = dict.fromkeys(["cost", "clicks", "impressions", "roas", "cost_per_order"])
    assert one == {"source": "(direct)", **amounts, "kind": "direct", **visits, **costs}
    assert shop.command("attribution", "report", "--since", "2999-01-01T00:00:00Z") == "no orders\n"
    assert shop.command("attribution", "report", "--since", "2999-01-01T00:00:00Z", "--json") == ""
    assert shop.command("attribution", "report", "--since", "1h", "--tenant", "none") == "no orders\n"
    # Orders count by their time of receipt.
    [twin] = derived(shop, "o-twin", "other")
    own = ("--tenant", "other", "--json")
    assert json.loads(shop.command("attribution", "report", "--since", twin["decidedAt"], *own))["orders"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("report",), "--since"),
        (("report", "--since", "yesterday"), "expected a date such as 2026-11-01, a time such as"),
        (("report", "--since", "1h", "--model", "magic"), "--model"),
        (("report", "--since", "1h", "--by", "source,chanel"), "there is no column 'chanel'; did you mean channel?"),
        (("report", "--since", "1h", "--time-zone", "Europe/Berlni"), "expected a time zone such as"),
        (("report", "--since", "1h", "--json", "--csv"), "not allowed with"),
        (("show",), "ORDER_ID"),
    ],
)
def test_misuse(filled: tuple[Shop, dict[str, str]], arguments: tuple[str, ...], told: str) -> None:
    assert told in misused(filled[0], *arguments)


def test_several_columns_days_and_the_time_before(filled: tuple[Shop, dict[str, str]]) -> None:
    shop, ids = filled
    [record] = [each for each in derived(shop, "o-1") if each["type"] == "attribution"]
    command = ["attribution", "report", "--since", "1d", "--tenant", "shop", "--by", "campaign,term", "--json"]
    day = ["--every", "day", "--compare", "--time-zone", "Pacific/Kiritimati"]
    rows = [json.loads(line) for line in shop.command(*command, *day).splitlines()]
    received = datetime.fromisoformat(record["decidedAt"]).astimezone(ZoneInfo("Pacific/Kiritimati"))
    assert {row["period"] for row in rows if row["orders"]} == {received.date().isoformat()}
    assert [*rows[0]][:4] == ["period", "name", "term", "currency"]
    assert [*rows[0]][-5:] == ["sessions_before", "orders_before", "net_before", "net_change", "cost_before"]
    assert {row["net_before"] for row in rows if row["currency"] == "EUR"} == {0}
    until = shop.command(*command, "--until", record["decidedAt"])  # a time is not included
    assert sum(json.loads(line)["orders"] for line in until.splitlines()) == 0
    assert "--until is not after --since" in refused(shop, "report", "--since", "1h", "--until", "2h")
    assert ids["order"] not in until


def test_models_beside_each_other_pages_products_and_paths(filled: tuple[Shop, dict[str, str]]) -> None:
    def rows(*arguments: str) -> dict[str | None, Any]:
        printed = shop.command("attribution", "report", "--since", "1h", "--tenant", "shop", "--json", *arguments)
        found = [row for row in map(json.loads, printed.splitlines()) if row["currency"] == "EUR"]
        return {next(iter(row.values())): row for row in found}

    shop, _ = filled
    models = rows("--by", "source,model")
    assert [models["newsletter"][f"net_{model}"] for model in ("last_touch", "first_touch", "linear")] == [0, 30, 10]
    assert models["newsletter"]["net"] == 0
    assert models["newsletter"]["assisted"] == 1
    assert rows("--by", "landing")[None]["net"] == 30  # a mail has no page
    assert rows("--by", "product")[None]["net"] == 50  # these orders have no products
    paths = rows("--paths", "--by", "medium")
    assert (paths["email > cpc > (not set)"]["orders"], paths["(direct)"]["orders"]) == (1, 1)
    assert "leave them out of --by" in refused(shop, "report", "--since", "1h", "--paths", "--by", "product")


def test_costs_beside_the_revenue(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        filler = Filler(shop, daemon)
        filler.touch("v", DAY, {"source": "google", "medium": "cpc"})
        filler.order("v", order_id="o-1", revenue=40, currency="EUR")
        wait_until(lambda: bool(derived(shop, "o-1")))
        today = datetime.now(UTC).date()
        file = tmp_path / "costs.csv"
        file.write_text(f"day,source,medium,currency,cost\n{today},Google,cpc,EUR,10\n{today},bing,cpc,USD,3\n")
        assert shop.command("costs", "import", str(file), "--dry-run") == "costs of shop: would be 2 new\n"
        assert shop.command("costs", "import", str(file)) == "costs of shop: 2 new\n"
        assert shop.command("costs", "import", str(file)) == "costs of shop: 2 same\n"
        printed = shop.command("attribution", "report", "--since", str(today), "--json")
        rows = {row["source"]: row for row in map(json.loads, printed.splitlines())}
        assert [rows["google"][name] for name in ("net", "cost", "roas", "cost_per_order")] == [40, 10, 4.0, 10]
        assert [rows["bing"][name] for name in ("currency", "orders", "cost", "roas")] == ["USD", 0, 3, 0]
        listed = [json.loads(line) for line in shop.command("costs", "list", "--json").splitlines()]
        assert [(each["source"], each["cost"]) for each in listed] == [("bing", 3), ("Google", 10)]
        day = ("--since", str(today), "--until", str(today))
        assert shop.command("costs", "remove", *day) == "costs of shop: 2 removed\n"
        assert shop.command("costs", "list") == "no costs\n"
    shop.create_key("public", "other")
    done = run_ingestd("costs", "import", str(file), config=shop.config)
    assert (done.returncode, "name the shop with --tenant, one of other, shop" in done.stderr) == (1, True)


def test_a_wrong_time_zone_of_the_configuration_is_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.attribution": 'time_zone = "Europe/Berlni"'})
    done = run_ingestd("attribution", "report", "--since", "1h", config=shop.config)
    assert done.returncode == 78
    assert "plugins.attribution.time_zone: expected a time zone such as" in done.stderr


def test_orders_that_attribution_has_not_read_are_told(tmp_path: Path) -> None:
    enabled = 'enabled = ["keys", "hmac_auth", "identity", "session", "sqlite", "jsonl"]'
    shop = Shop(tmp_path, {"plugins": enabled})
    order = {"key": "Order Completed", "anonymousId": "v", "data": {"order_id": "o-1", "revenue": 7}}
    with shop.serve() as daemon:
        assert daemon.post("/track", order, shop.public.id).status == 200
    shop.config.write_text(shop.config.read_text().replace('"session",', '"session", "attribution",'))
    done = run_ingestd("attribution", "report", "--since", "1h", "--json", config=shop.config)
    assert done.stderr == "missing: 1 orders that attribution has not read yet\n"
    assert "missing" not in shop.command("attribution", "report", "--since", "1h", "--tenant", "other")
    with shop.serve():
        wait_until(lambda: bool(derived(shop, "o-1")))
        assert "missing" not in shop.command("attribution", "report", "--since", "1h")


def test_before_any_order(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert shop.command("attribution", "report", "--since", "1h") == "no orders\n"
    assert shop.command("attribution", "report", "--since", "1h", "--csv").splitlines() == [COLUMNS]
    assert "is not attributed" in refused(shop, "show", "o-1")


def test_an_order_that_the_journal_no_longer_has_is_shown_from_memory(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'keep_for = "500ms"'})
    with shop.serve() as daemon:
        filler = Filler(shop, daemon)
        filler.touch("visitor", 26 * HOUR, {"source": "google"})
        filler.order("visitor", order_id="o-1", revenue=40, currency="EUR")
        filler.order("visitor", order_id="o-empty")
        wait_until(lambda: bool(derived(shop, "o-empty")))
        # Three events, two attributions.
        wait_until(lambda: daemon.metric('ingestd_journal_removed_total{reason="age"}') == 5)
        [attribution] = derived(shop, "o-1")
        assert refused(shop, "show", "o-1").endswith(
            "the attribution of the order 'o-1' has been removed from the journal. ingestd still remembers: "
            f"received {attribution['decidedAt']}, 40 EUR, 0 of it reversed, 1 touchpoints, the last one "
            "1 day, 2:00:00 before it"
        )
        assert ", no value, " in refused(shop, "show", "o-empty")
        # A reversal is shown with the order, whether the journal still has the reversal or not.
        filler.order("visitor", "Order Refunded", order_id="o-1", revenue=2.5)
        wait_until(lambda: len(derived(shop, "o-1")) == 2)
        assert ", 40 EUR, 2.5 of it reversed, " in refused(shop, "show", "o-1", "--json")
        done = run_ingestd("attribution", "report", "--since", "1h", "--json", config=shop.config)
        assert {json.loads(line)["orders"] for line in done.stdout.splitlines()} <= {0}  # of the refund's session
        assert done.stderr.startswith("the journal begins at 20")


def sums(shop: Shop) -> list[tuple[Any, ...]]:
    """The orders and amounts of the report. Sessions go with the person."""
    printed = shop.command("attribution", "report", "--since", "1h", "--model", "linear", "--json")
    names = ("source", "currency", "orders", "revenue", "reversed", "net")
    return [tuple(row[name] for name in names) for row in map(json.loads, printed.splitlines()) if row["orders"]]


def test_a_person_who_is_forgotten_leaves_campaigns_and_amounts(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        filler = Filler(shop, daemon)
        filler.touch("olga-visitor", DAY, {"source": "google"}, dispatchId="olga-mail")
        filler.touch("olga-visitor", HOUR, None, dispatchId="olga-push")
        filler.order("olga-visitor", order_id="o-1", revenue=40, currency="EUR")
        wait_until(lambda: bool(derived(shop, "o-1")))
        before = sums(shop)
        shop.command("forget", "--anonymous", "olga-visitor")
        assert sums(shop) == before
        printed = shop.command("attribution", "show", "o-1")
    assert "olga" not in printed  # a name that no id contains
    assert "  visitor      forgotten\n" in printed
    for touchpoint in (
        "1.0 d before  google [Organic Search]",
        "1.0 h before  a dispatch without its id [Unassigned]",
    ):
        assert f"{touchpoint}  (a device that has been forgotten)\n" in printed
