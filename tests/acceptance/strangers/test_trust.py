"""Orders, refunds and links: the backend of a shop outranks all holders of its public key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.clients import at_once
from tests.support.daemon import Reply, Shop, run_ingestd
from tests.support.trust import Pair, Site, open_site

SIGNED = {"plugins.identity": 'links = "signed"', "plugins.attribution": 'orders = "signed"'}


@pytest.fixture(scope="module")
def strict(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A shop that trusts only its backend."""
    with open_site(pair, tmp_path_factory.mktemp("strict"), SIGNED) as site:
        yield site


# POST /identify


@pytest.mark.parametrize("path", ["/identify", "/identify/"])
def test_a_backend_identifies_a_visitor(site: Site, path: str) -> None:
    visitor = f"backend{path}"
    session = site.send("/track", visitor).json()["session"]["sessionId"]
    body = {"anonymousId": visitor, "userId": "bea", "traits": {"plan": "gold"}}
    reply = site.signed(path, body)
    assert (reply.status, reply.json()) == (200, {"session": {"sessionId": session}})
    [record] = [each for each in site.shop.stored() if each["id"] == reply.headers["x-request-id"]]
    assert (record["type"], record["endpoint"], record["traits"]) == ("identify", "server-identify", {"plan": "gold"})
    assert (record["signed"], record["linked"], record["userId"]) == (True, True, "bea")
    assert site.user_of(visitor) == "bea"
    # A supplied session applies to this request only.
    supplied = "5C3F1F0E-3F0A-4F0C-8F53-3A4A4C7F0A11"
    reply = site.signed(path, {**body, "sessionId": supplied})
    assert reply.json() == {"session": {"sessionId": supplied.lower()}}
    assert site.send("/track", visitor).json()["session"] == {"sessionId": session, "isNew": False}


def test_identify_makes_the_checks_of_customer_events_in_the_same_order(site: Site) -> None:
    shop, daemon, body = site.shop, site.daemon, {"anonymousId": "x"}
    wrong: dict[str, Any] = {"anonymousId": 7}
    refusals: list[Callable[[str], Reply]] = [
        lambda path: daemon.post(path, wrong, None),
        lambda path: daemon.post(path, wrong, "no-key"),
        lambda path: daemon.post(path, wrong, shop.server.id),
        lambda path: daemon.post(path, wrong, shop.server.id, x_signature="0" * 64),
        lambda path: daemon.post(path, wrong, shop.public.id),
        lambda path: site.signed(path, wrong, site.without_grants),
        lambda path: site.signed(path, wrong),
        lambda path: site.signed(path, [body]),
    ]
    for refuse in refusals:
        found, expected = refuse("/identify"), refuse("/customer-events")
        assert found.status == expected.status
        assert found.json()["code"] == expected.json()["code"]
        assert found.headers["access-control-allow-origin"] == "*"
    assert [refuse("/identify").status for refuse in refusals] == [401, 401, 401, 401, 403, 403, 400, 400]
    assert daemon.request("GET", "/api/v1/analytics/identify").status == 405
    preflight = daemon.request("OPTIONS", "/api/v1/analytics/identify", headers={"Origin": "https://shop.example"})
    assert preflight.status == 204
    assert site.signed("/identify", {**body, "traits": {}}).status == 200


def test_identify_is_counted(site: Site) -> None:
    duration = 'ingestd_http_request_duration_seconds_count{endpoint="server-identify"}'
    accepted, measured = site.counted("identifies", outcome="accepted"), site.daemon.metric(duration)
    site.send("/identify", "counted")
    site.send("/identify/public", "counted")
    assert site.counted("identifies", outcome="accepted") == accepted + 2
    assert site.daemon.metric(duration) == measured + 1


# Orders


def test_a_stranger_freezes_no_order(site: Site) -> None:
    """A signed order supersedes a public one, and a later public one changes nothing."""
    site.send("/track", "thief", context={"campaign": {"source": "thief"}})
    site.send("/track", "ann", context={"campaign": {"source": "mail"}})
    stolen = site.order("/track", "o-frozen", "thief", revenue=9000)
    own = site.order("/customer-events", "o-frozen", "ann")
    site.order("/track", "o-frozen", "thief", revenue=9000)
    public, superseded, signed = site.derived("o-frozen", 3)
    assert (public["orderEventId"], public["touchpoint"]["source"]) == (stolen, "thief")
    assert (superseded["reason"], superseded["value"]["revenue"]) == ("superseded", 9000)
    assert (superseded["attributionId"], superseded["cause"]) == (public["id"], own)
    assert (signed["orderEventId"], signed["touchpoint"]["source"]) == (own, "mail")
    assert public["id"] != signed["id"]


def test_a_stranger_reverses_nothing_of_a_signed_order(site: Site) -> None:
    untrusted = site.counted("attribution_reversals", result="untrusted")
    early = site.refund("/track", "o-safe", 40)
    site.order("/customer-events", "o-safe")
    late = site.refund("/track", "o-safe", 40, "Order Cancelled")
    own = site.refund("/customer-events", "o-safe", 15)
    attribution, reversal = site.derived("o-safe", 2)
    assert (reversal["cause"], reversal["value"]["revenue"]) == (own, 15)
    assert site.counted("attribution_reversals", result="untrusted") == untrusted + 2
    shown = site.shop.command("attribution", "show", "o-safe").splitlines()
    assert shown[0] == "order o-safe of shop: 40"
    ignored = [line for line in shown if " is ignored: " in line]
    assert [line.partition(", received")[0].strip() for line in ignored] == [
        f"the refund {early}",
        f"the cancellation {late}",
    ]
    assert all(line.endswith("is ignored: a public key sent it") for line in ignored)
    assert attribution["id"] == reversal["attributionId"]


def test_a_superseding_order_is_explained_with_the_superseded_one(site: Site) -> None:
    site.order("/track", "o-twice", "thief", revenue=70)
    site.refund("/customer-events", "o-twice", 5)
    own = site.order("/customer-events", "o-twice")
    assert [each.get("reason") for each in site.derived("o-twice", 5)] == [
        None,
        "refund",
        "superseded",
        None,
        "refund",
    ]
    shown = site.shop.command("attribution", "show", "o-twice").splitlines()
    assert [line for line in shown if line.startswith("order ")] == [
        "order o-twice of shop: 70", "order o-twice of shop: 40",
    ]  # fmt: skip
    [line] = [line for line in shown if "superseded at" in line]
    assert line.endswith(f"by the signed order {own}: 65 reversed")


def test_implausible_amounts_count_in_no_sum(site: Site) -> None:
    before = site.daemon.metric("ingestd_attribution_amounts_ignored_total")
    site.order("/track", "o-huge", revenue=1e300)
    site.order("/track", "o-full", revenue=10**12)
    [huge] = site.derived("o-huge", 1)
    [full] = site.derived("o-full", 1)
    assert (huge["value"]["revenue"], huge["notCounted"]) == (None, ["revenue"])
    assert full["value"]["revenue"] == 10**12
    assert site.daemon.metric("ingestd_attribution_amounts_ignored_total") == before + 1
    assert "not counted  its revenue, which is over 10^12" in site.shop.command("attribution", "show", "o-huge")
    report = site.shop.command("attribution", "report", "--since", "1h")
    assert report.endswith("not counted: amounts over 10^12, of 1 orders\n")


# Links


def test_a_visitor_is_relinked_up_to_the_limit(site: Site) -> None:
    users = [f"relinked-{number}" for number in range(4)]
    assert [site.linked("/identify/public", "device", user) for user in users] == [True] * 4
    refused = site.counted("identity_links_refused", reason="max_links")
    repeated = {"anonymousId": "device", "userId": "relinked-9", "messageId": "m-device"}
    for _ in range(2):
        assert site.daemon.post("/identify/public", repeated, site.shop.public.id).status == 200
    assert site.counted("identity_links_refused", reason="max_links") == refused + 1
    assert site.user_of("device") == "relinked-3"
    assert site.linked("/identify/public", "device", "relinked-3") is True  # a link to the same user is no change
    assert site.linked("/identify", "device", "relinked-9") is True
    assert site.user_of("device") == "relinked-9"


def test_a_user_gathers_visitors_up_to_the_limit(site: Site) -> None:
    def send(number: int) -> Callable[[], Reply]:
        return lambda: site.send("/identify/public", f"robot-{number}", userId="victim")

    refused = site.counted("identity_links_refused", reason="max_visitors")
    at_once([send(number) for number in range(12)])
    records = [record for record in site.shop.stored() if record["type"] == "identify"]
    assert sum(record["linked"] for record in records if record["userId"] == "victim") == 5
    assert site.counted("identity_links_refused", reason="max_visitors") == refused + 7
    assert site.linked("/identify", "robot-server", "victim") is True


def test_simultaneous_requests_relink_no_more_than_the_limit(site: Site) -> None:
    def send(number: int) -> Callable[[], Reply]:
        return lambda: site.send("/identify/public", "shared", userId=f"together-{number}")

    at_once([send(number) for number in range(12)])
    records = [record for record in site.shop.stored() if record["type"] == "identify"]
    assert sum(record["linked"] for record in records if record["anonymousId"] == "shared") == 1 + 3


# A shop that trusts only its backend


def test_a_stranger_changes_no_orders_and_no_links(strict: Site) -> None:
    """Orders, refunds and links of strangers have no effect, but the events of the shop's pages are stored."""
    assert strict.linked("/identify", "phone", "ann") is True
    strict.send("/track", "phone", context={"campaign": {"source": "mail"}})
    strict.send("/track", "thief", context={"campaign": {"source": "thief"}})
    assert strict.linked("/identify/public", "thief", "ann") is False
    assert strict.linked("/identify/public", "phone", "thief") is False
    assert (strict.user_of("thief"), strict.user_of("phone")) == (None, "ann")
    first = strict.order("/track", "o-1", "thief", revenue=9000, userId="ann")
    refunded = strict.refund("/track", "o-1", 9000)
    own = strict.order("/customer-events", "o-1", "backend", userId="ann")
    strict.refund("/track", "o-1", 40)
    strict.refund("/customer-events", "o-1", 10)
    attribution, reversal = strict.derived("o-1", 2)
    assert (attribution["orderEventId"], attribution["touchpoint"]["source"]) == (own, "mail")
    assert (reversal["reason"], reversal["value"]["revenue"]) == ("refund", 10)
    assert strict.counted("attribution_orders", result="untrusted") == 1
    assert strict.counted("attribution_reversals", result="untrusted") == 2
    assert strict.counted("identity_links_refused", reason="unsigned") == 2
    shown = strict.shop.command("attribution", "show", "o-1")
    assert f"the order {first}, received " in shown
    assert f"the refund {refunded}, received " in shown


def test_an_order_that_only_a_stranger_sent_says_why_it_is_not_attributed(strict: Site) -> None:
    sent = strict.order("/track", "o-invented", "thief")
    strict.order("/customer-events", "o-behind")
    strict.derived("o-behind", 1)
    done = run_ingestd("attribution", "show", "o-invented", config=strict.shop.config)
    assert done.returncode == 1
    assert f"the order {sent}, received " in done.stderr
    assert "is ignored: a public key sent it" in done.stderr


def test_no_identify_request_of_a_public_key_links(strict: Site) -> None:
    strict.send("/identify/public", "thief-2", userId="bob", traits={"email": "thief@example.com"})
    batch = {"events": [{"type": "identify", "anonymousId": "thief-2", "userId": "bob", "traits": {"plan": "free"}}]}
    assert strict.daemon.post("/batch", batch, strict.shop.public.id).status == 200
    assert strict.user_of("thief-2") is None
    assert strict.linked("/identify/public", "bobs-own", "bob") is False
    records = [record for record in strict.shop.stored() if record.get("userId") == "bob"]
    assert [record["linked"] for record in records] == [False] * 3


# Advice


def test_check_advises_signed_where_there_is_a_server_key(site: Site, strict: Site) -> None:
    def found(shop: Shop) -> dict[str, Any]:
        done = run_ingestd("check", "--json", config=shop.config)
        assert done.returncode == 0, done.stderr
        return {each["name"]: each for each in json.loads(done.stdout)["plugins"]}

    advised, none = found(site.shop), found(strict.shop)
    for name in ("attribution.orders", "identity.links"):
        option = name.partition(".")[2]
        advice = advised[name]
        assert (advice["status"], f'plugins.{name} = "signed"' in advice["text"]) == ("ok", True)
        assert f'{option} = "any"' in advice["text"]
        assert name not in none
