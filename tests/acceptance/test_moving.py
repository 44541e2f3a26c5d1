"""`ingestd store copy` and `store compare`: a shop moves from store to store, and nothing is lost or repeated."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.forked import INGESTD, Command
from tests.support.journeys import HOUR, MINUTE, TRACK, Sender, attributions
from tests.support.redis_pieces import pieces_of_journal
from tests.support.redis_server import RedisServer, redis_server

SQLITE = "sqlite:ingestd.db"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(autouse=True)
def _empty(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


@pytest.fixture
def redis_url(server: RedisServer) -> str:
    return server.url


def run(shop: Shop, command: str, source: str, target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_ingestd("store", command, "--from", source, "--to", target, *arguments, config=shop.config, timeout=60)


def moved(shop: Shop, source: str, target: str) -> dict[str, Any]:
    """Copies a store, lets the configuration name the copy, and returns what the command printed."""
    done = run(shop, "copy", source, target, "--json")
    assert done.returncode == 0, done.stderr
    name(shop, source, target)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def name(shop: Shop, source: str, target: str) -> None:
    text = shop.config.read_text()
    assert f'"{source}"' in text
    shop.config.write_text(text.replace(f'"{source}"', f'"{target}"'))


def refused(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The reason why a command has failed."""
    assert done.returncode == code, done.stderr
    return done.stderr.splitlines()[-1]


class _Visits:
    """A visitor who comes again after each move."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._answers: dict[int, bytes] = {}
        self._number = 0

    def visit(self, daemon: Daemon) -> None:
        """Sends an event, and the event before it again, a touch, and an order that has all touches so far."""
        sender, number = Sender(self._shop, daemon), self._number
        for message in (number - 1, number):
            body = {"key": "Page View", "anonymousId": "visitor", "messageId": f"message-{message}", "data": {}}
            if message >= 0:
                answer = daemon.post(TRACK, {**body, "timestamp": sender.time()}, self._shop.public.id)
                assert answer.status == 200
                known = self._answers.setdefault(message, answer.body)
                assert json.loads(known)["session"]["sessionId"] == answer.json()["session"]["sessionId"]
        if number == 0:
            sender.link("visitor", "user")
        sender.touch("visitor", HOUR - number * MINUTE, f"source-{number}")
        sender.order("visitor", f"order-{number}")
        attribution = attributions(self._shop, [f"order-{number}"])[f"order-{number}"]
        sources = [touch["source"] for touch in attribution["touchpoints"]]
        assert sources == [f"source-{each}" for each in range(number + 1)]
        self._number += 1

    def check_archive(self) -> None:
        """The sink has got every record of the journal once."""
        journal = [record["id"] for record in self._shop.exported()]
        assert [record["id"] for record in self._shop.archived()] == journal
        views = [record for record in self._shop.archived() if record.get("messageId")]
        assert len(views) == self._number
        assert len({record["sessionId"] for record in views}) == 1
        assert {record["userId"] for record in views[1:]} == {"user"}


def test_a_shop_moves_between_all_kinds_of_stores(tmp_path: Path, redis_url: str) -> None:
    shop = Shop(tmp_path)
    visits = _Visits(shop)
    another = redis_url.removesuffix("/0") + "/1"
    with shop.serve() as daemon:
        visits.visit(daemon)
    for source, target in pairwise([SQLITE, redis_url, another, "sqlite:other.db", "sqlite:last.db"]):
        report = shop.command("attribution", "report", "--since", "2d")
        records = shop.exported()
        printed = moved(shop, source, target)
        assert printed["finished"]
        assert printed["journal"]["last"] == len(records)
        assert {"session", "link", "message", "keys", "touches"} <= {each["kind"] for each in printed["state"]}
        assert shop.exported() == records
        assert shop.command("attribution", "report", "--since", "2d") == report
        with shop.serve() as daemon:
            visits.visit(daemon)
        visits.check_archive()


def test_a_move_that_is_prepared_beside_the_daemon(tmp_path: Path, redis_url: str) -> None:
    shop = Shop(tmp_path)
    visits = _Visits(shop)
    with shop.serve() as daemon:
        visits.visit(daemon)
        sender = Sender(shop, daemon)
        sender.send(TRACK, "forgotten", context={"page": {"url": "https://shop.example/private"}})
        done = run(shop, "copy", SQLITE, redis_url)
        assert "a daemon serves from sqlite:ingestd.db; stop it, or add --prepare" in refused(done)
        done = run(shop, "copy", SQLITE, redis_url, "--prepare")
        assert done.stdout == "prepared: stop the daemon, and run the same command without --prepare\n"
        visits.visit(daemon)
        shop.command("forget", "--anonymous", "forgotten", "--tenant", "shop")
        visits.visit(daemon)
    records = shop.exported()
    name(shop, SQLITE, redis_url)
    done = run_ingestd("serve", config=shop.config)
    told = refused(done, 78)
    assert "store.url: the copy of sqlite:ingestd.db to this store is unfinished; finish it with" in told
    check = run_ingestd("check", config=shop.config)
    assert check.returncode == 78
    assert "the copy of sqlite:ingestd.db to this store is unfinished" in check.stdout
    name(shop, redis_url, SQLITE)
    moved(shop, SQLITE, redis_url)
    assert shop.exported() == records
    assert "private" not in str(records)
    with shop.serve() as daemon:
        visits.visit(daemon)
    visits.check_archive()


def test_a_killed_copy_continues(tmp_path: Path, redis_url: str) -> None:
    shop = Shop(tmp_path)
    events = tmp_path / "events.jsonl"
    events.write_text("".join(f"{json.dumps(_message(number))}\n" for number in range(2000)))
    shop.command("events", "import", str(events), "--tenant", "shop")
    for url in (redis_url, "sqlite:other.db"):
        command = [INGESTD, "store", "copy", "--from", SQLITE, "--to", url, "--config", str(shop.config)]
        for lines in count(1):
            with Command(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as copy:
                assert copy.stderr is not None
                for _ in range(lines):
                    copy.stderr.readline()
                copy.send_signal(signal.SIGKILL)
            if copy.returncode == 0:
                break
            assert copy.returncode == -signal.SIGKILL
            name(shop, SQLITE, url)
            assert "is unfinished" in refused(run_ingestd("serve", config=shop.config), 78)
            name(shop, url, SQLITE)
        assert lines > 2
        done = run(shop, "compare", SQLITE, url)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^  journal +2000 records  [0-9a-f]{32}$", done.stdout, re.MULTILINE)
        assert re.search(r"^  message +2000 entries  [0-9a-f]{32}$", done.stdout, re.MULTILINE)


def _message(number: int) -> dict[str, Any]:
    return {
        "type": "identify",
        "messageId": f"message-{number}",
        "anonymousId": f"visitor-{number}",
        "userId": f"user-{number}",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "receivedAt": "2026-01-01T00:00:00.000Z",
        "traits": {"plan": f"{number}"},
    }


def test_what_differs_is_named(tmp_path: Path, server: RedisServer) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        _Visits(shop).visit(daemon)
    moved(shop, SQLITE, server.url)
    assert run(shop, "compare", SQLITE, server.url).returncode == 0
    with server.client() as client:
        (session,) = client.scan_iter("ingestd:session:*")
        key = session.decode().removeprefix("ingestd:")
        content = client.dump(session)
        life = client.pttl(session)
        assert isinstance(life, int)
        client.append(session, "x")
        told = refused(run(shop, "compare", SQLITE, server.url))
        assert told.endswith(f"the copy differs from the source in entries of session: {key} has another content")
        client.delete(session)
        told = refused(run(shop, "compare", SQLITE, server.url))
        assert told.endswith(f"in entries of session: {key} is missing")
        client.restore(session, life, content)
        other = "link:" + "0" * 32
        client.set(f"ingestd:{other}", "|user")
        told = refused(run(shop, "compare", SQLITE, server.url))
        assert told.endswith(f"in entries of link: {other} is not in the source")
        client.delete(f"ingestd:{other}")
        client.hdel("ingestd:cursors", "sink:archive")
        assert "in the cursors of sink:archive" in refused(run(shop, "compare", SQLITE, server.url))
        client.xadd(pieces_of_journal(client, "ingestd:")[-1], {"t": "event", "a": "1", "b": "{}"}, id="100-0")
        client.hset("ingestd:meta", "last", 100)
        assert "has the records 1 to " in refused(run(shop, "compare", SQLITE, server.url))


def test_a_copy_needs_an_empty_target_that_no_daemon_serves(tmp_path: Path, redis_url: str) -> None:
    shop = Shop(tmp_path)
    other = "sqlite:other.db"
    moved(shop, SQLITE, other)
    with shop.serve():
        told = refused(run(shop, "copy", SQLITE, other))
        assert told.endswith("--to: a daemon serves from sqlite:other.db; stop it first")
        told = refused(run(shop, "compare", SQLITE, other))
        assert told.endswith("--to: a daemon serves from sqlite:other.db; stop it first")
    told = refused(run(shop, "copy", SQLITE, other))
    assert told.endswith("sqlite:other.db has data already, which a copy would mix with; name an empty store")
    told = refused(run(shop, "copy", "sqlite:none.db", redis_url))
    assert told.endswith("--from: there is no store at sqlite:none.db")
    done = run(shop, "copy", SQLITE, redis_url, "--prepare")
    assert done.returncode == 0, done.stderr
    told = refused(run(shop, "copy", other, redis_url))
    assert "is an unfinished copy of sqlite:ingestd.db, not of sqlite:other.db" in told
    told = refused(run(shop, "copy", redis_url, "sqlite:third.db"))
    assert "is itself an unfinished copy; finish it first" in told


def test_urls_are_checked_and_passwords_not_shown(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    told = refused(run(shop, "copy", "sqlit:ingestd.db", "sqlite:other.db"), 78)
    assert told.endswith("--from: no plugin offers a store for sqlit:…; did you mean sqlite:…?")
    told = refused(run(shop, "copy", "demo/ingestd.db", "sqlite:other.db"), 78)
    assert told.endswith('--from: expected a URL with its scheme, such as "sqlite:demo/ingestd.db"')
    told = refused(run(shop, "copy", SQLITE, "redis://host:port/0"), 78)
    assert "--to: " in told
    done = run(shop, "copy", SQLITE, "redis://me:geheim@127.0.0.1:1/0")
    assert done.returncode == 75
    assert "geheim" not in done.stderr


def test_a_mistyped_source_is_not_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    before = sorted(tmp_path.iterdir())
    told = refused(run(shop, "copy", "sqlite:mistyped.db", "sqlite:other.db"))
    assert told.endswith("--from: there is no store at sqlite:mistyped.db")
    with shop.serve() as daemon:
        _Visits(shop).visit(daemon)
    told = refused(run(shop, "compare", SQLITE, "sqlite:mistyped.db"))
    assert told.endswith("--to: there is no store at sqlite:mistyped.db")
    assert not [path for path in tmp_path.iterdir() if path not in before and path.name.startswith(("mist", "other"))]


def test_a_second_run_finds_all_that_differs(tmp_path: Path, server: RedisServer) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        _Visits(shop).visit(daemon)
    assert run(shop, "copy", SQLITE, server.url, "--prepare").returncode == 0
    other = "link:" + "0" * 32
    with server.client() as client:
        (session,) = client.scan_iter("ingestd:session:*")
        (link, *_) = client.scan_iter("ingestd:link:*")
        content = client.get(session)
        client.append(session, "x")
        client.delete(link)
        client.set(f"ingestd:{other}", "|user")
        done = run(shop, "copy", SQLITE, server.url)
        assert done.returncode == 0, done.stderr
        assert client.get(session) == content
        assert client.exists(link)
        assert not client.exists(f"ingestd:{other}")
    assert run(shop, "compare", SQLITE, server.url).returncode == 0


def test_a_store_with_a_separate_journal_is_not_copied(tmp_path: Path, redis_url: str) -> None:
    shop = Shop(tmp_path, {"journal": 'url = "sqlite:journal.db"'})
    with shop.serve() as daemon:
        _Visits(shop).visit(daemon)
    for url in (SQLITE, "sqlite:journal.db"):
        told = refused(run(shop, "copy", url, redis_url))
        assert "is one of two stores, since [journal] url had another value than [store] url" in told
