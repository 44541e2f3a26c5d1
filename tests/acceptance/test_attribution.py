"""Attribution from end to end: orders and touches over HTTP, attributions in the journal and in a sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ingestd.plugins.sources import Channels
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.journeys import (
    DAY,
    HOUR,
    IDENTIFY,
    MINUTE,
    SERVER,
    TRACK,
    Sender,
    attributions,
    derived,
)

MODELS = ("last_touch", "first_touch", "linear", "position_based", "time_decay")
CAMPAIGN_FIELDS = ("source", "medium", "name", "term", "content")
NOBODY_BROUGHT_IT: dict[str, Any] = {"touchpoint": None, "touchpoints": [], "credits": {model: [] for model in MODELS}}

CAMPAIGN = {"source": "news", "medium": "email", "name": "spring", "term": "shirts", "content": "top"}
URL = "https://shop.example/a?UTM_Source=search%20engine&utm%5Fmedium=cpc&x=1&utm_campaign=summer+sale#utm_term=no"
UTM = {"source": "search engine", "medium": "cpc", "name": "summer sale"}
FORMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "campaign": ({"context": {"campaign": CAMPAIGN, "page": {"url": URL}}}, CAMPAIGN),
    "utm": ({"context": {"page": {"url": URL}}}, UTM),
    "utm beside blanks": ({"context": {"campaign": {"source": " ", "name": ""}, "page": {"url": URL}}}, UTM),
    "dispatch": ({"dispatchId": "mail-7"}, {"dispatchId": "mail-7"}),
    "dispatch of a campaign": (
        {"dispatchId": "mail-8", "context": {"campaign": {"name": "autumn"}}},
        {"dispatchId": "mail-8", "name": "autumn"},
    ),
}
"""The context of a touch, and the part of it that an attribution contains."""


def orders(daemon: Daemon) -> dict[str, float]:
    return counted(daemon, "orders", ("attributed", "direct", "repeated", "conflict"))


def reversals(daemon: Daemon) -> dict[str, float]:
    results = (
        "reversed",
        "nothing_left",
        "no_amount",
        "waiting",
        "repeated",
        "other_currency",
        "unknown_order",
        "too_many",
        "untrusted",
        "superseded",
    )
    return counted(daemon, "reversals", results)


def counted(daemon: Daemon, what: str, results: tuple[str, ...]) -> dict[str, float]:
    values = {result: daemon.metric(f'ingestd_attribution_{what}_total{{result="{result}"}}') for result in results}
    return {result: value for result, value in values.items() if value}


def touch_ids(record: dict[str, Any]) -> list[str]:
    return [touch["eventId"] for touch in record["touchpoints"]]


def touchpoint(**told: Any) -> dict[str, Any]:
    """The touchpoint of a campaign, or of a dispatch alone."""
    texts = {**dict.fromkeys((*CAMPAIGN_FIELDS, "dispatchId")), **told}
    kind = "campaign" if any(texts[name] for name in CAMPAIGN_FIELDS) else "dispatch"
    channel = Channels(()).of(texts["source"], texts["medium"], texts["name"])
    return {**texts, "kind": kind, "channel": channel, "clickId": None}


def test_a_touch_counts_on_every_endpoint_in_every_form(shop: Shop, daemon: Daemon) -> None:
    sender = Sender(shop, daemon)
    sent = {}
    for endpoint in (TRACK, SERVER, IDENTIFY):
        for form, (members, campaign) in FORMS.items():
            visitor = f"{form} on {endpoint}"
            sent[visitor] = sender.send(endpoint, visitor, 5 * MINUTE, **members), campaign
    for number, visitor in enumerate(sent):
        # An order starts attribution on either endpoint.
        sender.send((TRACK, SERVER)[number % 2], visitor, key="Order Completed", data={"order_id": visitor})
    found = attributions(shop, sent)
    sessions = {record["id"]: record["sessionId"] for record in shop.exported() if record["type"] != "attribution"}
    for visitor, (event_id, campaign) in sent.items():
        record = found[visitor]
        expected = touchpoint(
            eventId=event_id,
            at=sender.time(5 * MINUTE),
            anonymousId=visitor,
            sessionId=sessions[event_id],
            **campaign,
        )
        assert record["touchpoint"] == expected
        assert record["touchpoints"] == [expected]
        assert record["credits"] == {model: [{"eventId": event_id, "weight": 1.0}] for model in MODELS}


def test_an_order_of_the_backend_finds_what_happened_on_all_devices(shop: Shop, daemon: Daemon) -> None:
    sender = Sender(shop, daemon)
    first = sender.touch("her-phone", 6 * DAY, "google")
    sender.link("her-phone", "her")
    second = sender.send(TRACK, "her-laptop", 12 * HOUR, context={"page": {"url": URL}})
    sender.link("her-laptop", "her")
    third = sender.send(TRACK, "her-phone", MINUTE, dispatchId="mail-9")
    # The backend knows the user and none of the devices.
    data = {"order_id": "o-her", "revenue": 40, "total": 50.5, "currency": "EUR"}
    order = sender.send(SERVER, "erp", key="Order Completed", data=data, userId="her")
    record = attributions(shop, ["o-her"])["o-her"]
    journal = {each["id"]: each for each in shop.exported()}
    assert journal[record["id"]] == record
    assert str(UUID(record["id"])) == record["id"]

    def told(event_id: str, **campaign: str) -> dict[str, Any]:
        event = journal[event_id]
        return touchpoint(
            eventId=event_id,
            at=event["timestamp"],
            anonymousId=event["anonymousId"],
            sessionId=event["sessionId"],
            **campaign,
        )

    touches = [told(first, source="google"), told(second, **UTM), told(third, dispatchId="mail-9")]
    decay = [2 ** (-age / (7 * DAY)) for age in (6 * DAY, 12 * HOUR, MINUTE)]
    weights: dict[str, list[float]] = {
        "last_touch": [0, 0, 1],
        "first_touch": [1, 0, 0],
        "linear": [1 / 3, 1 / 3, 1 / 3],
        "position_based": [0.4, 0.2, 0.4],
        "time_decay": [share / sum(decay) for share in decay],
    }
    assert record == {
        "id": record["id"],
        "type": "attribution",
        "tenant": "shop",
        "decidedAt": journal[order]["receivedAt"],
        "orderId": "o-her",
        "orderEventId": order,
        "orderAt": sender.time(),
        "anonymousId": "erp",
        "userId": "her",
        "model": "last_touch",
        "windowSeconds": 604_800,
        "value": {"revenue": 40, "total": 50.5, "currency": "EUR"},
        "touchpoint": touches[2],
        "credits": {
            model: [
                {"eventId": event_id, "weight": pytest.approx(weight)}
                for event_id, weight in zip((first, second, third), shares, strict=True)
                if weight
            ]
            for model, shares in weights.items()
        },
        "touchpoints": touches,
        "ignored": [],
        "leftOut": 0,
    }
    assert [type(record[name]) for name in ("windowSeconds", "leftOut")] == [int, int]
    assert type(record["value"]["revenue"]) is int


def test_whose_touches_count_for_an_order(shop: Shop, daemon: Daemon) -> None:
    sender = Sender(shop, daemon)
    phone = sender.touch("phone", 3 * HOUR, "google")
    tablet = sender.touch("tablet", 2 * HOUR, "bing")
    kiosk = sender.touch("kiosk", HOUR, "kiosk")

    def order(order_id: str, visitor: str, **members: Any) -> None:
        sender.send(SERVER, visitor, key="Order Completed", data={"order_id": order_id}, **members)

    order("o-unlinked", "phone")
    sender.link("phone", "ann")
    order("o-one-device", "phone")
    sender.link("tablet", "ann")
    sender.link("kiosk", "bob")
    order("o-two-devices", "phone")
    order("o-no-user", "phone", userId="")
    order("o-of-another", "phone", userId="bob")
    order("o-erp", "till", userId="ann")
    order("o-till", "till")
    sender.link("tablet", "bob")
    order("o-ann-later", "phone")
    order("o-bob-later", "kiosk")
    sender.send(IDENTIFY, "phone", userId="guest")
    sender.send(IDENTIFY, "kiosk", userId="guest")
    order("o-guest", "phone", userId="guest")

    expected = {
        "o-unlinked": (None, [phone]),
        "o-one-device": ("ann", [phone]),
        "o-two-devices": ("ann", [phone, tablet]),
        "o-no-user": ("ann", [phone, tablet]),
        "o-of-another": ("bob", [phone, kiosk]),
        "o-erp": ("ann", [phone, tablet]),
        "o-till": (None, []),  # an event with a user id links nobody
        "o-ann-later": ("ann", [phone]),
        "o-bob-later": ("bob", [tablet, kiosk]),
        "o-guest": ("guest", [phone]),
    }
    found = attributions(shop, expected)
    assert {order_id: (record["userId"], touch_ids(record)) for order_id, record in found.items()} == expected
    nobody = {"key": "Order Completed", "userId": "ann", "data": {"order_id": "o-nobody"}}
    assert daemon.post_signed(nobody, shop.server).status == 400


def test_the_window_and_the_time_of_an_order_to_the_millisecond(shop: Shop, daemon: Daemon) -> None:
    sender = Sender(shop, daemon)
    oldest = sender.touch("oldest", 7 * DAY, "google")
    too_old = sender.touch("too old", 7 * DAY + 1, "google")
    at_once = sender.touch("at once", 0, "google")
    too_late = sender.touch("too late", -1, "google")
    # The journal decides the order of touches with the same time.
    tied = [sender.touch("tied", HOUR, source) for source in ("a", "b")]
    again = [sender.touch("again", age * HOUR, source) for age, source in ((3, "a"), (2, "b"), (1, "a"))]
    visitors = ("oldest", "too old", "at once", "too late", "tied", "again", "afterwards", "own")
    for visitor in visitors:
        data, campaign = {"order_id": f"o-{visitor}"}, {"source": "google"} if visitor == "own" else {}
        own = sender.send(SERVER, visitor, key="Order Completed", data=data, context={"campaign": campaign})
    # Touches received after an order do not change it, whenever they happened. Nor does the order's own campaign.
    afterwards = sender.touch("afterwards", HOUR, "google")
    sender.order("afterwards", "o-next")
    sender.order("own", "o-own-next")

    found = attributions(shop, [*(f"o-{visitor}" for visitor in visitors), "o-next", "o-own-next"])
    assert {order_id.removeprefix("o-"): touch_ids(record) for order_id, record in found.items()} == {
        "oldest": [oldest], "too old": [], "at once": [at_once], "too late": [], "tied": tied, "again": again,
        "afterwards": [], "next": [afterwards], "own": [], "own-next": [own],
    }  # fmt: skip
    assert found["o-tied"]["touchpoint"]["source"] == "b"
    assert found["o-again"]["touchpoint"]["source"] == "a"
    for visitor, event_id, age, reason in (
        ("too old", too_old, 7 * DAY + 1, "before_window"),
        ("too late", too_late, -1, "after_order"),
    ):
        record = found[f"o-{visitor}"]
        assert record == {**record, **NOBODY_BROUGHT_IT}
        assert record["ignored"] == [
            {"eventId": event_id, "at": sender.time(age), "anonymousId": visitor, "reason": reason}
        ]


def test_the_configured_options_are_applied(tmp_path: Path) -> None:
    options = """
    window = "90m"
    model = "first_touch"
    half_life = "30m"
    exclude_sources = ["paypal"]
    exclude_mediums = ["internal"]
    exclude_domains = ["shop.example"]
    """
    shop = Shop(tmp_path, {"plugins.attribution": options})
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        ids = {
            "before_window": sender.touch("visitor", 90 * MINUTE + 1, "older"),
            "first": sender.touch("visitor", HOUR, "google"),
            "last": sender.touch("visitor", 30 * MINUTE, "bing"),
        }
        for reason, context in {
            "excluded_source": {"campaign": {"source": "PayPal"}},
            "excluded_medium": {"campaign": {"source": "x", "medium": "Internal"}},
            "excluded_domain": {"campaign": {"name": "x"}, "page": {"referrer": "https://www.shop.example/cart"}},
        }.items():
            ids[reason] = sender.send(SERVER, "visitor", MINUTE, context=context)
        sender.order("visitor", "o-1")
        record = attributions(shop, ["o-1"])["o-1"]
    assert (record["model"], record["windowSeconds"]) == ("first_touch", 5400)
    assert record["touchpoint"]["eventId"] == ids["first"]
    assert touch_ids(record) == [ids["first"], ids["last"]]
    assert record["credits"]["time_decay"] == [
        {"eventId": ids["first"], "weight": pytest.approx(1 / 3)},
        {"eventId": ids["last"], "weight": pytest.approx(2 / 3)},
    ]
    reasons = ("before_window", "excluded_source", "excluded_medium", "excluded_domain")
    assert {each["reason"]: each["eventId"] for each in record["ignored"]} == {each: ids[each] for each in reasons}


def test_beyond_the_limit_the_first_and_the_newest_touches_stay(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.attribution": 'model = "linear"'})
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        phone = [sender.touch("phone", 9 * HOUR - number, f"a{number}") for number in range(202)]
        laptop = [sender.touch("laptop", HOUR - number, f"b{number}") for number in range(2)]
        for visitor in ("phone", "laptop"):
            sender.link(visitor, "ann")
        sender.order("phone", "o-phone")
        sender.send(SERVER, "erp", key="Order Completed", data={"order_id": "o-erp"}, userId="ann")
        found = attributions(shop, ["o-phone", "o-erp"])
    for record in found.values():
        assert touch_ids(record) == [phone[0], *phone[5:], *laptop]
        assert record["leftOut"] == 2  # of the 200 of the phone and the two of the laptop
        # If shares are equal, the newest touch is reported.
        assert record["touchpoint"]["eventId"] == laptop[-1]
        assert len(record["credits"]["linear"]) == 200


def test_refunds_and_cancellations_take_back_no_more_than_the_order(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        sender.touch("visitor", HOUR, "google")
        sender.touch("visitor", MINUTE, "bing")
        sender.order("visitor", "o-whole", revenue=40, total=50, currency="EUR")
        sender.order("visitor", "o-total", total=0.3, currency="EUR")
        sender.order("visitor", "o-empty")
        attributed = attributions(shop, ["o-whole", "o-total", "o-empty"])

        def refund(order_id: str, key: str = "Order Refunded", endpoint: str = SERVER, **data: Any) -> str:
            message = {"messageId": data.pop("message")} if "message" in data else {}
            return sender.send(endpoint, "erp", key=key, data={"order_id": order_id, **data}, **message)

        causes = [refund("o-whole", revenue=10, total=20, message="m-1")]
        refund("o-whole", revenue=10, total=20, message="m-1")  # stored once
        causes += [refund("o-whole", total=5, currency="EUR"), refund("o-whole", revenue=-4)]
        refund("o-whole", total=5, endpoint=TRACK)  # the holder of a public key may be anybody
        refund("o-whole", revenue=3, currency="USD")
        causes += [
            refund("o-whole", revenue=1000),
            refund("o-total", total=0.1),
            refund("o-total", "Order Cancelled", revenue=0.1, reason="changed her mind"),
            refund("o-empty", "Order Cancelled"),
        ]
        refund("o-whole", "Order Cancelled")
        refund("undefined", revenue=1)
        wait_until(lambda: reversals(daemon).get("unknown_order") == 1)
        others = {"nothing_left": 1, "unknown_order": 1, "other_currency": 1, "untrusted": 1}
        assert reversals(daemon) == {"reversed": 7, **others}
        wait_until(lambda: len(derived(shop, "attribution_reversal")) == 7)
        assert orders(daemon) == {"attributed": 3}
        # Earlier records have not changed.
        assert {each["orderId"]: each for each in shop.exported("--type", "attribution")} == attributed
    records = derived(shop, "attribution_reversal")
    assert [record["cause"] for record in records] == causes
    whole = {"total": None, "currency": "EUR"}
    total = {"revenue": None, "currency": "EUR"}
    assert [(record["orderId"], record["reason"], record["value"]) for record in records] == [
        ("o-whole", "refund", {**whole, "revenue": 10}),
        ("o-whole", "refund", {**whole, "revenue": 5}),
        ("o-whole", "refund", {**whole, "revenue": 4}),
        ("o-whole", "refund", {**whole, "revenue": 21}),
        ("o-total", "refund", {**total, "total": 0.1}),
        ("o-total", "cancel", {**total, "total": 0.2}),
        ("o-empty", "cancel", {"revenue": None, "total": None, "currency": None}),
    ]
    events = {event["id"]: event for event in derived(shop, "event")}
    for record in records:
        attribution = attributed[record["orderId"]]
        assert str(UUID(record["id"])) == record["id"]
        assert record == {
            "id": record["id"],
            "type": "attribution_reversal",
            "tenant": "shop",
            "decidedAt": events[record["cause"]]["receivedAt"],
            "attributionId": attribution["id"],
            **{name: attribution[name] for name in ("orderId", "orderEventId", "orderAt", "anonymousId", "userId")},
            "reason": record["reason"],
            "value": record["value"],
            "cause": record["cause"],
            **{name: attribution[name] for name in ("model", "touchpoint", "credits")},
        }
    assert len({record["id"] for record in records}) == 7
    [line] = [line for line in daemon.log if "another currency" in line]
    assert "'o-whole' of shop" in line


def test_refunds_before_their_order_wait_for_it(tmp_path: Path) -> None:
    """In a batch with their order, and over a restart of the daemon. Public refunds of a signed order do not count."""
    shop = Shop(tmp_path)
    items = [{"product_id": "a", "price": 12.5, "quantity": 2}, {"product_id": "gift"}]
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)

        def refund(order_id: str, key: str = "Order Refunded", endpoint: str = SERVER, **data: Any) -> str:
            return sender.send(endpoint, "erp", key=key, data={"order_id": order_id, **data})

        causes = [refund("o-1", products=items, currency="eur"), refund("o-1", total=5)]
        refund("o-1", total=6, endpoint=TRACK)
        for _ in range(2):
            refund("o-1", total=7, refund_id="r-7")
        refund("o-1", "Order Cancelled")
        wait_until(lambda: reversals(daemon) == {"waiting": 5, "repeated": 1})
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        for _ in range(2):
            sender.order("visitor", "o-1", total=100, currency="EUR")
        events = [
            {"key": key, "anonymousId": "visitor", "data": {"order_id": "o-2", "total": total}}
            for key, total in (("Order Refunded", 30), ("Order Completed", 100), ("Order Refunded", 20))
        ]
        assert daemon.post("/batch", {"events": events}, shop.public.id).status == 200
        wait_until(lambda: reversals(daemon) == {"reversed": 6, "waiting": 1, "untrusted": 1})
        assert orders(daemon) == {"direct": 2, "repeated": 1}
        wait_until(lambda: len(derived(shop, "attribution_reversal")) == 6)
    records = derived(shop, "attribution_reversal")
    found = [(record["orderId"], record["reason"], record["value"]["total"]) for record in records]
    assert found == [
        ("o-1", "refund", 25),
        ("o-1", "refund", 5),
        ("o-1", "refund", 7),
        ("o-1", "cancel", 63),
        ("o-2", "refund", 30),
        ("o-2", "refund", 20),
    ]
    assert [record["cause"] for record in records[:2]] == causes
    decided = {record["orderId"]: record["decidedAt"] for record in derived(shop, "attribution")}
    assert {record["decidedAt"] for record in records[:4]} == {decided["o-1"]}


def test_an_order_that_is_sent_again_is_decided_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        sender.touch("visitor-secret", HOUR, "google")
        first = sender.order("visitor-secret", "o-1", revenue=40, currency="EUR")
        record = attributions(shop, ["o-1"])["o-1"]
        # The page is loaded again after another touch, and the backend sends the order with another value.
        sender.touch("visitor-secret", MINUTE, "bing")
        sender.order("visitor-secret", "o-1", revenue=40, currency="EUR")
        sender.send(TRACK, "other", key="Order Completed", data={"order_id": "o-1", "revenue": 40, "currency": "EUR"})
        data = {"order_id": "o-1", "revenue": 38.5, "currency": "EUR"}
        sender.send(SERVER, "erp", key="Order Completed", data=data, userId="user-secret")
        # Without an order id each event is a separate order.
        nameless = [sender.send(SERVER, "erp", key="Order Completed", data={"revenue": 1}) for _ in range(2)]
        wait_until(lambda: orders(daemon).get("direct") == 2)
        assert orders(daemon) == {"attributed": 1, "direct": 2, "repeated": 2, "conflict": 1}
        wait_until(lambda: len(derived(shop)) == 3)
    assert derived(shop)[0] == record
    assert record["orderEventId"] == first
    assert record["touchpoint"]["source"] == "google"
    assert [(each["orderId"], each["orderEventId"]) for each in derived(shop)[1:]] == [(None, id_) for id_ in nameless]
    [line] = [line for line in daemon.log if "another value" in line]
    assert "WARNING" in line
    assert "'o-1' of shop" in line
    assert record["id"] in line
    for secret in (shop.public.id, shop.server.id, shop.server.secret, "secret", "38.5"):
        assert secret not in line


def test_nothing_crosses_tenants(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    other = shop.create_key("public", "other")
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        sender.touch("visitor", HOUR, "google")
        sender.link("visitor", "ann")
        sender.order("visitor", "o-1", revenue=40, currency="EUR")
        order = {"key": "Order Completed", "data": {"order_id": "o-1", "revenue": 7}}
        refund = {"key": "Order Refunded", "data": {"order_id": "o-1"}}
        for body in (order, refund):
            answer = daemon.post("/track", {**body, "anonymousId": "visitor", "userId": "ann"}, other.id)
            assert answer.status == 200
        wait_until(lambda: len(derived(shop)) == 2 and len(derived(shop, "attribution_reversal")) == 1)
        assert orders(daemon) == {"attributed": 1, "direct": 1}
    mine, theirs = sorted(derived(shop), key=lambda record: record["tenant"] != "shop")
    assert (mine["tenant"], theirs["tenant"]) == ("shop", "other")
    assert mine["touchpoint"]["source"] == "google"
    assert theirs == {**theirs, **NOBODY_BROUGHT_IT, "ignored": []}
    assert mine["id"] != theirs["id"]
    [reversal] = derived(shop, "attribution_reversal")
    assert (reversal["tenant"], reversal["attributionId"]) == ("other", theirs["id"])
    assert reversal["value"] == {"revenue": 7, "total": None, "currency": None}


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ('window = "7"', "window: "),
        ('window = "0s"', "window: expected more than 0"),
        ('model = "last"', "model: "),
        ('half_life = "0s"', "half_life: expected more than 0"),
        ("max_touches = 2", "max_touches: unknown option; it is always 200 now"),
        ('exclude_sources = "x"', "exclude_sources: expected an array in brackets"),
        ('order_memory = "0s"', "order_memory: expected more than 0"),
        ('windw = "7d"', "windw: unknown option; did you mean plugins.attribution.window?"),
    ],
)
def test_a_bad_option_stops_the_start_and_is_named(tmp_path: Path, option: str, reason: str) -> None:
    shop = Shop(tmp_path, {"plugins.attribution": option})
    for command in ("serve", "check"):
        done = run_ingestd(command, config=shop.config)
        assert done.returncode == 78
        assert "Traceback" not in done.stderr
        assert f"{shop.config}: plugins.attribution.{reason}" in done.stderr.splitlines()[-1]
