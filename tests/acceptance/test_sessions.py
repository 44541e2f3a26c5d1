"""Sessions, links and profiles over HTTP: simultaneous requests, restarts and several tenants."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ingestd.plugins.identity import anonymous_profile, user_profile
from tests.support.clients import at_once, wait_until
from tests.support.daemon import Daemon, Key, Reply, Shop


def event(visitor: str, **members: Any) -> dict[str, Any]:
    return {"key": "Page View", "anonymousId": visitor, "data": {}, **members}


def track(daemon: Daemon, key: Key, visitor: str, **members: Any) -> Any:
    """Sends an event that must be accepted, and returns its session."""
    return accepted(daemon.post("/track", event(visitor, **members), key.id))


def identify(daemon: Daemon, key: Key, visitor: str, **members: Any) -> Any:
    return accepted(daemon.post("/identify/public", {"anonymousId": visitor, **members}, key.id))


def server_event(daemon: Daemon, key: Key, visitor: str, **members: Any) -> Any:
    return accepted(daemon.post_signed(event(visitor, **members), key))


def accepted(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    return reply.json()["session"]


def traits(shop: Shop, profile: str) -> dict[str, Any]:
    """A profile, read from the file, because no API operation reads profiles."""
    with closing(sqlite3.connect(shop.database)) as connection, connection:
        rows = connection.execute("SELECT name, value FROM field WHERE key = ?", (profile,)).fetchall()
    return {name: json.loads(value) for name, value in rows}


def test_twelve_simultaneous_first_events_make_one_session_of_each_visitor(shop: Shop, daemon: Daemon) -> None:
    visitors = [f"crowd-{number}" for number in range(4)]
    kinds = [partial(track, daemon, shop.public), partial(identify, daemon, shop.public, traits={"plan": "gold"})]
    kinds.append(partial(server_event, daemon, shop.server))
    calls = [(visitor, partial(kinds[number % 3], visitor)) for number in range(12) for visitor in visitors]
    answers = defaultdict(list)
    for (visitor, _), session in zip(calls, at_once([call for _, call in calls]), strict=True):
        answers[visitor].append(session)
    records = [record for record in shop.stored() if record["anonymousId"] in visitors]
    for visitor in visitors:
        assert len(answers[visitor]) == 12
        (session,) = {answer["sessionId"] for answer in answers[visitor]}
        stored = [record for record in records if record["anonymousId"] == visitor]
        assert [record["sessionId"] for record in stored] == [session] * 12
        assert [record["sessionIsNew"] for record in stored].count(True) == 1
        # /customer-events does not return isNew, and its event may have begun the session.
        assert [answer.get("isNew", False) for answer in answers[visitor]].count(True) <= 1
    assert len({record["sessionId"] for record in records}) == len(visitors)


def test_twelve_simultaneous_first_events_with_one_message_id_are_stored_once(shop: Shop, daemon: Daemon) -> None:
    sessions = at_once([partial(track, daemon, shop.public, "again", messageId="m-again")] * 12)
    (stored,) = [record for record in shop.stored() if record["anonymousId"] == "again"]
    assert sessions == [{"sessionId": stored["sessionId"], "isNew": True}] * 12


def test_a_session_continues_over_all_endpoints(shop: Shop, daemon: Daemon) -> None:
    first = track(daemon, shop.public, "walker")
    assert first["isNew"] is True
    going_on = {"sessionId": first["sessionId"], "isNew": False}
    assert track(daemon, shop.public, "walker") == going_on
    assert identify(daemon, shop.public, "walker") == going_on
    assert server_event(daemon, shop.server, "walker") == {"sessionId": first["sessionId"]}


@pytest.mark.parametrize("send", [track, identify])
def test_a_supplied_session_becomes_the_current_one(send: Any, shop: Shop, daemon: Daemon) -> None:
    visitor = f"supplier-{send.__name__}"
    first = track(daemon, shop.public, visitor)
    own = str(uuid4())
    assert send(daemon, shop.public, visitor, sessionId=own.upper()) == {"sessionId": own, "isNew": True}
    assert send(daemon, shop.public, visitor, sessionId=own) == {"sessionId": own, "isNew": False}
    assert track(daemon, shop.public, visitor) == {"sessionId": own, "isNew": False}
    # An earlier session that is supplied again becomes the current one.
    back = first["sessionId"]
    assert send(daemon, shop.public, visitor, sessionId=back) == {"sessionId": back, "isNew": True}
    assert track(daemon, shop.public, visitor) == {"sessionId": back, "isNew": False}


def test_a_session_supplied_by_a_server_applies_to_that_event_only(shop: Shop, daemon: Daemon) -> None:
    live = track(daemon, shop.public, "payer")["sessionId"]
    own = str(uuid4())
    assert server_event(daemon, shop.server, "payer", sessionId=own.upper()) == {"sessionId": own}
    assert track(daemon, shop.public, "payer") == {"sessionId": live, "isNew": False}
    # It does not start a session for a visitor without one either.
    assert server_event(daemon, shop.server, "stranger", sessionId=own) == {"sessionId": own}
    fresh = track(daemon, shop.public, "stranger")
    assert fresh["isNew"] is True
    assert fresh["sessionId"] != own
    stored = [record for record in shop.stored() if record["sessionId"] == own]
    assert [record["sessionIsNew"] for record in stored] == [False, False]


@pytest.mark.parametrize("wrong", ["", "s-1", 7, None, "{00000000-0000-4000-8000-000000000000}"])
def test_a_session_id_that_is_no_uuid_is_refused(wrong: Any, shop: Shop, daemon: Daemon) -> None:
    body = event("wrong", sessionId=wrong)
    identity = {"anonymousId": "wrong", "sessionId": wrong}
    replies = [
        daemon.post("/track", body, shop.public.id),
        daemon.post("/identify/public", identity, shop.public.id),
        daemon.post_signed(body, shop.server),
    ]
    for reply in replies:
        assert reply.status == 400
        assert {error["pointer"] for error in reply.json()["errors"]} == {"/sessionId"}
    assert not [record for record in shop.stored() if record["anonymousId"] == "wrong"]


def test_nothing_crosses_tenants(shop: Shop, daemon: Daemon) -> None:
    other_public, other_server = shop.create_key("public", "other"), shop.create_key("server", "other")
    wait_until(lambda: daemon.post("/track", event("early"), other_public.id).status == 200)
    wait_until(lambda: daemon.post_signed(event("early"), other_server).status == 200)
    own = str(uuid4())
    same = {"messageId": "m-tenant"}
    mine = track(daemon, shop.public, "both", **same)
    theirs = track(daemon, other_public, "both", **same)
    assert mine["isNew"] is theirs["isNew"] is True
    assert mine["sessionId"] != theirs["sessionId"]

    identify(daemon, shop.public, "both", userId="user", traits={"email": "mine@shop.example"})
    track(daemon, other_public, "both")
    server_event(daemon, other_server, "both")
    identify(daemon, other_public, "visitor", userId="user", traits={"plan": "theirs"})
    assert track(daemon, shop.public, "both", sessionId=own) == {"sessionId": own, "isNew": True}
    assert track(daemon, other_public, "both") == {**theirs, "isNew": False}
    assert track(daemon, other_public, "both", sessionId=own) == {"sessionId": own, "isNew": True}

    stored = [record for record in shop.stored() if record["anonymousId"] == "both"]
    assert [(record["tenant"], record["userId"]) for record in stored] == [
        ("shop", None), ("other", None), ("shop", "user"), ("other", None), ("other", None),
        ("shop", "user"), ("other", None), ("other", None),
    ]  # fmt: skip
    assert traits(shop, user_profile("shop", "user")) == {"email": "mine@shop.example"}
    assert traits(shop, user_profile("other", "user")) == {"plan": "theirs"}


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_restart_keeps_sessions_links_traits_messages_and_keys(end: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with Daemon(shop.config) as daemon:
        first = track(daemon, shop.public, "linked", messageId="m-1")
        identify(daemon, shop.public, "linked", traits={"firstName": "Ann"})
        identify(daemon, shop.public, "linked", userId="ann", traits={"email": "ann@shop.example"})
        identify(daemon, shop.public, "unlinked", traits={"plan": "gold"})
        getattr(daemon, end)()
    with shop.serve() as daemon:
        going_on = {"sessionId": first["sessionId"], "isNew": False}
        assert track(daemon, shop.public, "linked") == going_on
        assert server_event(daemon, shop.server, "linked") == {"sessionId": first["sessionId"]}
        # A repeated message after the restart gets the first answer and is not stored again.
        assert track(daemon, shop.public, "linked", messageId="m-1") == first
        identify(daemon, shop.public, "unlinked", userId="bob")
        assert track(daemon, shop.public, "unlinked")["isNew"] is False
    users = [(record["anonymousId"], record["userId"]) for record in shop.exported("--type", "event")]
    assert users == [("linked", None), ("linked", "ann"), ("linked", "ann"), ("unlinked", "bob")]
    assert traits(shop, user_profile("shop", "ann")) == {"firstName": "Ann", "email": "ann@shop.example"}
    # The visitor's traits from before the restart were copied to the user at the first link after it.
    assert traits(shop, user_profile("shop", "bob")) == {"plan": "gold"}
    assert traits(shop, anonymous_profile("shop", "unlinked")) == {"plan": "gold"}
