"""Random bytes, from noise to requests with one wrong bit. Each run sends the same bytes."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.daemon import Daemon, Key, Shop, sign
from tests.support.mutations import mutate_bytes, mutate_value, valid_bodies
from tests.support.rawhttp import Client, counting, head, outcomes, post, quiet, talk_at_once

CONNECTIONS = 8
BATCH = 50

ANSWERS = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 431}


def noise(chance: random.Random) -> bytes:
    size = chance.choice([1, 3, 20, 200, 5000, 70_000])
    match chance.randrange(4):
        case 0:
            return chance.randbytes(size)
        case 1:
            return b"POST / HTTP/1.1\r\n" + chance.randbytes(size) + b"\r\n\r\n"
        case 2:
            return bytes(chance.choices(b"POST /:HTTP/1.1\r\n\r\n\r\n\t,;0123\0", k=min(size, 5000)))
        case _:
            return chance.randbytes(size).hex().encode() + b"\r\n\r\n" + chance.randbytes(size)


def test_noise_is_no_request(daemon: Daemon) -> None:
    chance = random.Random(1)
    seen: Counter[int] = Counter()
    with counting(daemon):
        for replies in talk_at_once(daemon.port, [noise(chance) for _ in range(400)]):
            seen.update(reply.status for reply in replies)
    assert set(seen) <= {400, 404, 431}
    assert seen[400] > 100


def test_a_body_of_noise_is_refused(shop: Shop, daemon: Daemon) -> None:
    chance = random.Random(2)
    requests = []
    for _ in range(100):
        body = chance.randbytes(chance.choice([1, 100, 50_000]))
        requests += [
            post(shop.public.id, body),
            post(shop.public.id, body, "Content-Encoding: gzip"),
            head(shop.public.id, "Transfer-Encoding: chunked") + b"\xff" + body + b"\r\n",
        ]
    with counting(daemon, invalid=300):
        for replies in talk_at_once(daemon.port, requests):
            assert [reply.status for reply in replies] == [400]


def test_requests_with_a_few_wrong_bytes_are_answered_or_the_connection_is_closed(shop: Shop, daemon: Daemon) -> None:
    chance = random.Random(3)
    bodies = [json.dumps(body).encode() for body in valid_bodies()]
    seen: Counter[int] = Counter()
    streams = []
    for _ in range(1500):
        body = chance.choice(bodies)
        whole = post(
            shop.public.id, body, f"x-signature: {sign(shop.server.secret, body)}", "Origin: https://shop.example"
        )
        streams.append(mutate_bytes(chance, whole[:400]) + whole[400:])
    for replies in talk_at_once(daemon.port, streams):
        seen.update(reply.status for reply in replies)
    assert set(seen) <= ANSWERS
    assert {200, 400, 401, 404} <= set(seen)
    quiet(daemon)


def request_of(key: Key, path: str, body: bytes) -> bytes:
    signature = [f"x-signature: {sign(key.secret, body)}"] if key.secret else []
    return post(key.id, body, *signature, path=path)


def spoilt_bodies(chance: random.Random, count: int) -> Iterator[bytes]:
    valid = list(valid_bodies())
    raw = [json.dumps(body).encode() for body in valid]
    for number in range(count):
        if number % 2:
            yield mutate_bytes(chance, chance.choice(raw))
        else:
            yield json.dumps(mutate_value(chance, chance.choice(valid)), ensure_ascii=bool(number % 4)).encode()


def content(value: Mapping[str, Any], *, identify: bool) -> str:
    """The content of a body or a record in one form, independent of order and spelling."""
    names = ("anonymousId", "traits") if identify else ("key", "anonymousId", "data")
    return json.dumps([value.get(name) or {} for name in names], sort_keys=True)


@pytest.mark.parametrize("count", [6_000, pytest.param(24_000, marks=pytest.mark.long)])
def test_thousands_of_spoilt_bodies_are_stored_whole_or_refused(shop: Shop, daemon: Daemon, count: int) -> None:
    bodies = list(spoilt_bodies(random.Random(4), count))
    keys = {"/track": shop.public, "/identify/public": shop.public, "/customer-events": shop.server}
    paths = [list(keys)[number % len(keys)] for number in range(CONNECTIONS)]
    earlier = len(shop.stored())
    before = outcomes(daemon)
    statuses: Counter[int] = Counter()
    kept: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(daemon.port)) for _ in paths]
        while bodies:
            sent = []
            for client, path in zip(clients, paths, strict=True):
                batch, bodies = bodies[:BATCH], bodies[BATCH:]
                client.send(b"".join(request_of(keys[path], path, body) for body in batch))
                sent.append((client, path, batch))
            for client, path, batch in sent:
                for body in batch:
                    reply = client.reply()
                    statuses[reply.status] += 1
                    assert reply.status in {200, 400, 404}, (reply, body)
                    if reply.status == 200:
                        kept[content(json.loads(body), identify=path.startswith("/identify"))] += 1
    quiet(daemon)
    counted = outcomes(daemon) - before
    assert counted["accepted"] + counted["duplicate"] == statuses[200]
    assert (counted["invalid"], counted["unknown_key"]) == (statuses[400], statuses[404])
    assert counted.total() == count
    assert min(statuses.values()) > count / 200
    received = [record for record in shop.stored()[earlier:] if record["type"] in {"event", "identify"}]
    stored = Counter(content(record, identify=record["type"] == "identify") for record in received)
    assert stored.total() == counted["accepted"]
    assert stored <= kept
    assert kept.total() - stored.total() == counted["duplicate"]
