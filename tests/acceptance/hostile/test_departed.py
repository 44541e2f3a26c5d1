"""Clients that stop in the middle, stop sending or disconnect: an event is stored whole or not at all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from tests.support.daemon import Daemon, Shop
from tests.support.rawhttp import Client, chunked, event, head, outcomes, post, quiet, talk

Leave = Callable[[Client], None]
LEAVING = {"close": Client.close, "reset": Client.vanish}


def test_a_half_closed_client_gets_its_answers(shop: Shop, daemon: Daemon) -> None:
    key, body = shop.public.id, event()
    for request in (post(key, body), head(key, "Transfer-Encoding: chunked") + chunked(body)):
        assert [reply.status for reply in talk(daemon.port, request)] == [200]
    assert [reply.status for reply in talk(daemon.port, post(key, body) * 30)] == [200] * 30
    assert [reply.status for reply in talk(daemon.port, post(key, b"{") + post("another", body))] == [400, 401]


def test_a_client_that_half_closes_later_gets_its_answer(shop: Shop, daemon: Daemon) -> None:
    with Client(daemon.port) as client:
        client.send(post(shop.public.id, event()))
        assert client.reply().status == 200
        client.send(post(shop.public.id, event()))
        client.finish_sending()
        assert [reply.status for reply in client.end()] == [200]


def test_a_request_that_is_cut_off_anywhere_is_no_event(shop: Shop, daemon: Daemon) -> None:
    key, body = shop.public.id, event()
    before = outcomes(daemon)
    for whole in (post(key, body), head(key, "Transfer-Encoding: chunked") + chunked(body[:9], body[9:])):
        for size in range(len(whole)):
            assert talk(daemon.port, whole[:size]) == []
    quiet(daemon)
    assert outcomes(daemon) == before


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
def test_the_event_of_a_client_that_disconnects_is_stored_whole_or_not_at_all(
    shop: Shop, daemon: Daemon, leave: Leave
) -> None:
    chance = random.Random(7)
    visitor = f"gone by {leave.__name__}"
    sent = {number: chance.randbytes(chance.choice([10, 1000, 30_000])).hex() for number in range(200)}
    accepted = outcomes(daemon)["accepted"]
    for number, text in sent.items():
        whole = post(shop.public.id, event({"number": number, "text": text}, anonymousId=visitor))
        client = Client(daemon.port)
        # Every second client disconnects before the end of its request, the others before their answer.
        client.send(whole if number % 2 else whole[: chance.randrange(len(whole))])
        leave(client)
    quiet(daemon)
    stored = [record["data"] for record in shop.stored() if record.get("anonymousId") == visitor]
    assert outcomes(daemon)["accepted"] - accepted == len(stored)
    numbers = [data["number"] for data in stored]
    assert len(set(numbers)) == len(numbers)
    for data in stored:
        assert data["number"] % 2
        assert data["text"] == sent[data["number"]]
    if leave is Client.close:  # the daemon had received the whole request before the client disconnected
        assert len(stored) == 100


def test_a_client_that_never_reads_its_answers_is_no_burden(shop: Shop, daemon: Daemon) -> None:
    refused = post(shop.public.id, json.dumps({"key": "x" * 90}).encode())
    with Client(daemon.port) as client:
        client.send(refused * 1000)
        assert daemon.post("/track", event(), shop.public.id).status == 200
        client.vanish()
    quiet(daemon)
