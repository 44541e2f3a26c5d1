"""What `ingestd forget` reaches beside records: reasons of sinks, and the memory of running daemons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Reply, Shop
from tests.support.forked import short_times
from tests.support.live import EventStream
from tests.support.redis_shop import redis_shop
from tests.support.webhook_server import webhook_server

SAID = "MARK-said"
ADA = {"anonymousId": "MARK-visitor", "userId": "MARK-user"}
EVENT = {"key": "Page View", "data": {"name": "MARK-data"}}


@contextmanager
def open_shop(folder: Path, store: str, tables: dict[str, str]) -> Iterator[Shop]:
    if store == "Redis":
        with redis_shop(folder, tables) as shop:
            yield shop
    else:
        yield Shop(folder, tables)


def told(shop: Shop, daemon: Daemon) -> str:
    """All that an operator can see of the past, but for the journal and the log."""
    paths = ("/status.json", "/dead-letters.json")
    seen = ""
    while not seen:  # the second mark of an erasure ends the page's rows once more
        with EventStream(daemon) as stream:
            assert not stream.hello["continues"]
            daemon.post("/track", {"key": "Page View", "anonymousId": "later", "data": {}}, shop.public.id)
            seen = stream.text if stream.has_rows() else ""
    commands = (("sinks", "status", "--json"), ("sinks", "dead-letters", "list", "hook", "--json"))
    return seen + "".join(
        [daemon.ops(path).body.decode() for path in paths] + [shop.command(*each) for each in commands]
    )


@pytest.mark.logs("hook")
@pytest.mark.parametrize("store", ["SQLite", "Redis"])
def test_nothing_that_a_sink_or_a_page_says_names_the_person_afterwards(tmp_path: Path, store: str) -> None:
    """The sink rejects all, takes nothing any more, and then rejects all again: with records of the person in hand."""
    with webhook_server() as hook:
        hook.answer = lambda _: Reply(400, {}, f"{SAID} is bad".encode())
        sink = f'type = "webhook"\nurl = "{hook.url}"\nretry = {{ initial = "20ms", max = "50ms" }}'
        tables = {"sinks.hook": f"{sink}\nbatch = {{ max_events = 1 }}", "ops": 'show_data = "all"'}
        quick = short_times(erasures=0.1, sink_commands=0.05, next_action=0.1)
        with open_shop(tmp_path, store, tables) as shop, quick, shop.serve() as daemon, EventStream(daemon) as stream:
            for who in (ADA, {"anonymousId": "another"}):
                assert daemon.post("/track", {**EVENT, **who}, shop.public.id).status == 200
            wait_until(lambda: any(b'"another"' in each.content for each in hook.received) and is_delivered(daemon))
            hook.answer = lambda _: Reply(503, {}, b"")
            assert daemon.post("/identify/public", {**ADA, "traits": {"a": "MARK-trait"}}, shop.public.id).status == 200
            assert daemon.post("/track", {**EVENT, **ADA}, shop.public.id).status == 200
            wait_until(lambda: b"MARK-trait" in hook.received[-1].content)
            stream.rows(3)
            assert SAID in told(shop, daemon)

            counts = json.loads(shop.command("forget", "--user", "MARK-user", "--json"))["counts"]
            assert counts["dead letters"] == 1  # the reason of the other person's letter goes too, and does not count
            stream.wait_for_end()  # so that its page drops its rows
            wait_until(lambda: b"MARK-trait" not in hook.received[-1].content)  # the record in hand was read again
            assert "MARK" not in hook.received[-1].content.decode()
            hook.answer = lambda _: Reply(400, {}, b"is bad")
            # Another process has appended the erasure, so the daemon may learn of it last.
            wait_until(lambda: b'"type":"erasure"' in hook.received[-1].content)
            wait_until(lambda: is_delivered(daemon))
            hook.answer = lambda _: Reply(204, {}, b"")
            wait_until(lambda: "MARK" not in told(shop, daemon).replace(erasure_of(shop), ""))
            reasons = [json.loads(line)["reason"] for line in letters(shop)]
            assert reasons[:2] == ["removed by ingestd forget"] * 2
            assert "erasure" in reasons[-1]  # which names the person itself
            assert "nothing to forget" in shop.command("forget", "--user", "MARK-user", "--dry-run")


def is_delivered(daemon: Daemon) -> bool:
    return bool(
        next(each for each in daemon.ops("/status.json").json()["sinks"] if each["sink"] == "hook")["pending"] == 0
    )


def letters(shop: Shop) -> list[str]:
    return shop.command("sinks", "dead-letters", "list", "hook", "--json").splitlines()


def erasure_of(shop: Shop) -> str:
    return json.dumps([record for record in shop.stored() if record["type"] == "erasure"])
