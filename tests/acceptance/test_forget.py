"""`ingestd forget` with a daemon and without one: its output, and the remaining data on disk."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.events import Record
from ingestd.api.times import now
from tests.support.backends import sqlite_backend
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.forked import INGESTD, Command

PRIVATE = [
    "ada-visitor", "ada-phone", "ada@example.com", "ada-search", "ada-campaign", "ada-dispatch", "ada-message",
    "ada-blog", "ada-click", "ada-page",
]  # fmt: skip

SESSION = "3b5b4a0e-7d0a-4d52-9a4c-0e1f5e0c3a11"


def track(visitor: str, **further: Any) -> dict[str, Any]:
    return {"key": "Products Searched", "anonymousId": visitor, "data": {"query": "shoes"}, **further}


def identify(visitor: str, user: str, email: str) -> dict[str, Any]:
    return {"anonymousId": visitor, "userId": user, "traits": {"email": email}}


def fill(shop: Shop, daemon: Daemon) -> None:
    """Sends Ada's events on two devices, one of which is Bob's later, and events of other people."""

    def send(path: str, body: Any, key: str = shop.public.id) -> None:
        assert daemon.post(path, body, key).status == 200

    page: Any = {"url": "https://shop.example/ada-page", "referrer": "https://ada-blog.example/ada-page"}
    send("/track", track("ada-visitor", sessionId=SESSION, context={"page": page}))
    page = {"url": "https://shop.example/ada-page?gclid=ada-click"}
    for number in range(40):
        long = "ada-search " * (1000 if number % 10 == 0 else 5)
        context = {"campaign": {"name": "ada-campaign"}, "ip": "ada-search", "page": page}
        further = {"dispatchId": f"ada-dispatch-{number}", "messageId": f"ada-message-{number}", "note": "ada-search"}
        send("/track", track("ada-visitor", **further, context=context, data={"query": long}))
        send("/track", track(f"visitor-{number}"))
    send("/identify/public", identify("ada-visitor", "ada", "ada@example.com"))
    send("/identify/public", identify("ada-phone", "ada", "older ada@example.com"))
    assert daemon.post_signed(track("another-device", userId="ada"), shop.server).status == 200
    send("/identify/public", identify("ada-phone", "bob", "bob@example.com"))
    send("/track", track("ada-phone"))
    wait_until(lambda: shop.is_done("attribution"))


def on_disk(shop: Shop) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(shop.folder.glob("*.db*")))


@pytest.mark.parametrize("beside", [True, False], ids=["beside a daemon", "without a daemon"])
@pytest.mark.parametrize("journal", ["", 'url = "sqlite:journal.db"'], ids=["one file", "journal apart"])
def test_a_forgotten_user_is_on_disk_only_in_the_erasure(tmp_path: Path, *, beside: bool, journal: str) -> None:
    shop = Shop(tmp_path, {"journal": journal})
    with ExitStack() as running:
        daemon = running.enter_context(shop.serve())
        fill(shop, daemon)
        before = shop.stored()
        if not beside:
            running.close()
        looked = json.loads(shop.command("forget", "--user", "ada", "--dry-run", "--json"))
        assert shop.stored() == before
        told = json.loads(shop.command("forget", "--user", "ada", "--json"))
        assert told["counts"] == {
            "records": 44, "links": 1, "sessions": 1, "profiles": 1, "touches": 41, "journey links": 1,
            "ids of orders": 0, "dead letters": 0,
        }  # fmt: skip
        assert (told["tenant"], told["userId"], told["anonymousIds"]) == ("shop", "ada", ["ada-phone", "ada-visitor"])
        assert looked == {**told, "dryRun": True, "erasure": None}
        *after, erasure = shop.stored()
        assert erasure["id"] == told["erasure"]
        assert [one for one in after if not one.get("erased")] == [
            one for one in before if one["userId"] != "ada" and one["anonymousId"] != "ada-visitor"
        ]
        assert [one["id"] for one in after] == [one["id"] for one in before]
        if beside:
            # The daemon has no copy in memory: Ada's device is a new visitor, and Bob's phone is still linked to him.
            back = daemon.post("/track", track("ada-visitor"), shop.public.id).json()
            assert back["session"]["isNew"]
            bob = daemon.post("/track", track("ada-phone"), shop.public.id).json()
            assert not bob["session"]["isNew"]
            assert [one["userId"] for one in shop.stored()[-2:]] == [None, "bob"]
            # SQLite's write-ahead log is soon without the user too.
            wait_until(lambda: b"ada@example.com" not in on_disk(shop))
            wait_until(lambda: shop.is_done("sink:archive"))
            assert [one for one in shop.archived() if one["type"] == "erasure"] == [erasure]
    left = on_disk(shop)
    back_again = 1 if beside else 0
    assert {text: left.count(text.encode()) for text in PRIVATE} == {
        **dict.fromkeys(PRIVATE, 0),
        "ada-visitor": 1 + back_again,  # the erasure, and the visitor who came back
        "ada-phone": 1 + 2 + back_again + 1,  # Bob's visitor, and its link
    }
    assert left.count(b'"userId":"ada"') == 1
    again = shop.command("forget", "--user", "ada")
    assert again == "nothing to forget: user ada of shop\n"


def test_a_blanked_record_keeps_its_counted_members_and_an_erasure_names_the_person(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        assert daemon.post("/track", track("va", messageId="m"), shop.public.id).status == 200
        assert daemon.post("/identify/public", identify("va", "ada", "a@b.c"), shop.public.id).status == 200
    event, _ = shop.stored()
    printed = shop.command("forget", "--anonymous", "va")
    assert printed.splitlines() == [
        "forgotten: visitor va of shop",
        "  dead letters   0",
        "  ids of orders  0",
        "  journey links  1",
        "  links          1",
        "  profiles       0",
        "  records        2",
        "  sessions       1",
        "  touches        0",
    ]
    blanked, identified, erasure = shop.stored()
    kept = ("id", "type", "tenant", "endpoint", "signed", "receivedAt", "timestamp", "key", "sessionIsNew", "schema")
    nulls = dict.fromkeys(("anonymousId", "userId", "sessionId", "dispatchId", "messageId"))
    assert blanked == {
        **{name: event[name] for name in kept}, **nulls, "data": {}, "context": {}, "extra": {}, "erased": True,
    }  # fmt: skip
    assert (identified["traits"], identified["erased"]) == ({}, True)
    assert list(erasure) == ["id", "type", "tenant", "erasedAt", "userId", "anonymousIds"]
    assert erasure | {"id": "", "erasedAt": ""} == {
        "id": "", "type": "erasure", "tenant": "shop", "erasedAt": "", "userId": None, "anonymousIds": ["va"],
    }  # fmt: skip
    with shop.serve() as daemon:  # the user's profile is not the visitor's, and message ids are still known
        assert daemon.post("/track", track("vb", messageId="m"), shop.public.id).status == 200
    assert len(shop.stored()) == 3
    assert shop.command("forget", "--user", "ada").splitlines()[1:] == [
        "  dead letters   0",
        "  ids of orders  0",
        "  journey links  0",
        "  links          0",
        "  profiles       1",
        "  records        0",
        "  sessions       0",
        "  touches        0",
        "  visitors       0",
    ]


def test_with_several_tenants_one_must_be_named(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    other = shop.create_key("public", "other")

    def refused(*arguments: str) -> str:
        done = run_ingestd("forget", *arguments, config=shop.config)
        assert done.returncode == 1, done.stderr
        return done.stderr.splitlines()[-1]

    assert "--tenant" in refused("--user", "ada")  # there are no records yet
    with shop.serve() as daemon:
        for key in (shop.public, other):
            assert daemon.post("/identify/public", identify("va", "ada", "a@b.c"), key.id).status == 200
            assert daemon.post("/track", track("va"), key.id).status == 200
    assert "several tenants (shop, other)" in refused("--user", "ada")
    assert "other, shop" in refused("--user", "ada", "--tenant", "shopp")
    assert "is not the id of one user" in refused("--user", "guest", "--tenant", "shop")
    assert not any("erased" in record for record in shop.stored())
    shop.command("forget", "--user", "ada", "--tenant", "other")
    assert [record.get("erased", False) for record in shop.stored()[:-1]] == [False, False, True, True]
    with shop.serve() as daemon:
        for key in (shop.public, other):
            assert daemon.post("/track", track("va"), key.id).status == 200
    assert [record["userId"] for record in shop.stored()[-2:]] == ["ada", None]


@pytest.mark.parametrize("arguments", [[], ["--user", ""], ["--user", "a", "--anonymous", "b"], ["--user", b"\xff"]])
def test_a_person_must_be_named_exactly_once(tmp_path: Path, arguments: list[str]) -> None:
    shop = Shop(tmp_path)
    done = run_ingestd("forget", *arguments, config=shop.config)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_run_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"http": 'shutdown_timeout = "500ms"'})  # attribution is never behind with such short records

    async def fill_journal() -> None:
        def body(number: int) -> bytes:
            value = {"id": f"{number}", "type": "event", "tenant": "shop", "anonymousId": "va", "userId": None}
            return json.dumps({**value, "data": {"private": "ada-search"}}).encode()

        async with sqlite_backend(tmp_path) as backend:
            records = [Record("event", now(), body(number)) for number in range(2500)]
            await backend.journal.commit(records, backend.store.begin(now()))

    asyncio.run(fill_journal())
    with shop.serve() as daemon:
        assert daemon.post("/identify/public", identify("va", "ada", "a@b.c"), shop.public.id).status == 200
        command = [INGESTD, "forget", "--user", "ada", "--config", str(shop.config)]
        with Command(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as forgetting:
            wait_until(lambda: any("erased" in record for record in shop.stored()))
            forgetting.kill()
        shown = [record.get("erased", False) for record in shop.stored() if record["type"] != "erasure"]
        assert 0 < shown.count(True) < len(shown)
        assert "forgotten" in shop.command("forget", "--user", "ada")
        assert all(record.get("erased", False) for record in shop.stored() if record["type"] != "erasure")
        assert daemon.metric('ingestd_events_total{endpoint="track",key="",outcome="failed"}') == 0
    assert b"ada-search" not in on_disk(shop)
    assert "nothing to forget" in shop.command("forget", "--user", "ada")
