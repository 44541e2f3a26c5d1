"""Many requests in one write are answered in their order, until one of them ends the connection."""

from __future__ import annotations

import random
from uuid import UUID

from tests.support.daemon import BASE, Daemon, Shop, sign
from tests.support.rawhttp import Client, assert_refused, chunked, counting, event, head, post, talk, talk_at_once


def test_answers_come_in_the_order_of_the_requests(shop: Shop, daemon: Daemon) -> None:
    sessions = [str(UUID(int=number)) for number in range(500)]
    requests = [
        post(shop.public.id, event(anonymousId=f"visitor {number % 7}", sessionId=session))
        for number, session in enumerate(sessions)
    ]
    with counting(daemon, accepted=500):
        replies = talk(daemon.port, b"".join(requests))
    assert [reply.json()["session"]["sessionId"] for reply in replies] == sessions


def test_good_and_bad_requests_on_one_connection_are_all_answered(shop: Shop, daemon: Daemon) -> None:
    key, server, body = shop.public.id, shop.server, event()
    signature = f"x-signature: {sign(server.secret, body)}"
    kinds = {
        "accepted": (200, post(key, body)),
        "accepted in chunks": (200, head(key, "Transfer-Encoding: chunked") + chunked(body[:5], body[5:])),
        "accepted, signed": (200, post(server.id, body, signature, path="/customer-events")),
        "invalid": (400, post(key, body[:-1])),
        "invalid encoding": (400, post(key, body, "Content-Encoding: gzip")),
        "unauthorized": (401, post("another", body)),
        "forbidden": (403, post(key, body, path="/customer-events")),
        "unknown_key": (404, post(key, event(key="No"))),
        "no path": (404, post(key, body, path="/nothing")),
        "no method": (405, post(key, body).replace(b"POST", b"PUT", 1)),
        "preflight": (204, f"OPTIONS {BASE}/track HTTP/1.1\r\nHost: shop\r\n\r\n".encode()),
    }
    chance = random.Random(3)
    connections = [[chance.choice(list(kinds)) for _ in range(20)] for _ in range(30)]
    expected = {
        outcome: sum(name.split(",")[0].split()[0] == outcome for order in connections for name in order)
        for outcome in ("accepted", "invalid", "unauthorized", "forbidden", "unknown_key")
    }
    with counting(daemon, **expected):
        streams = [b"".join(kinds[name][1] for name in order) for order in connections]
        found = talk_at_once(daemon.port, streams)
    assert [[reply.status for reply in replies] for replies in found] == [
        [kinds[name][0] for name in order] for order in connections
    ]


def test_requests_in_pieces_of_any_size_are_the_same_requests(shop: Shop, daemon: Daemon) -> None:
    chance = random.Random(5)
    stream = post(shop.public.id, event()) * 40
    with counting(daemon, accepted=40), Client(daemon.port) as client:
        at = 0
        while at < len(stream):
            size = chance.choice([1, 2, 7, 60, 300, 2000])
            client.send(stream[at : at + size])
            at += size
        client.finish_sending()
        assert [reply.status for reply in client.end()] == [200] * 40


def test_bytes_after_the_last_request_are_not_answered(shop: Shop, daemon: Daemon) -> None:
    good = post(shop.public.id, event())
    with counting(daemon, accepted=2):
        replies = talk(daemon.port, good + post(shop.public.id, event(), "Connection: close") + good * 5)
    assert [reply.status for reply in replies] == [200, 200]
    with counting(daemon, accepted=1):
        *replies, last = talk(daemon.port, good + b"\0\r\n\r\n" + good * 5)
    assert [reply.status for reply in replies] == [200]
    assert_refused(last, 400, "invalid_http")
    with counting(daemon, accepted=1, too_large=1):
        *replies, last = talk(daemon.port, good + head(shop.public.id, "Content-Length: 99999999") + good * 5)
    assert [reply.status for reply in replies] == [200]
    assert_refused(last, 413, "too_large")
