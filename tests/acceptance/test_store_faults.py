"""The store fails: events are refused with 503, and accepted again without a restart when the store works."""

from __future__ import annotations

import errno
import io
import re
import resource
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import at_once, wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.disks import small_disk

UNAVAILABLE = 'ingestd_events_total{endpoint="track",key="Page View",outcome="unavailable"}'

Fault = Callable[[Shop, Daemon], AbstractContextManager[None]]


@contextmanager
def full_disk(shop: Shop, daemon: Daemon | None = None) -> Iterator[None]:
    """The disk, which only the shop uses, is full."""
    ballast = shop.folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while _writes(file):
            pass
    yield
    ballast.unlink()


def _writes(file: io.FileIO) -> bool:
    try:
        file.write(bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


@contextmanager
def file_limit(shop: Shop, daemon: Daemon) -> Iterator[None]:
    """The daemon cannot make any file larger: every write fails."""
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked_database(shop: Shop, daemon: Daemon) -> Iterator[None]:
    """Another process holds the file for longer than the daemon waits."""
    connection = sqlite3.connect(shop.database, isolation_level=None)
    try:
        wait_until(lambda: _locks(connection))
        yield
    finally:
        connection.close()


def _locks(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:  # the daemon was writing at that moment
        return False
    return True


def event(number: str, **members: Any) -> dict[str, Any]:
    return {"key": "Page View", "anonymousId": "known", "data": {"number": number}, **members}


def go_through(fault: Fault, shop: Shop, reason: str) -> None:
    """Checks a daemon before, during and after a fault, and the records that it has stored."""
    accepted = ["before"]
    with shop.serve() as daemon:

        def post(number: str, **members: Any) -> int:
            return daemon.post("/track", event(number, **members), shop.public.id).status

        known = daemon.post("/track", event("before"), shop.public.id).json()["session"]
        with fault(shop, daemon):
            # Space that was allocated before may hold an event or two. Events answered 200 count.
            for number in range(200):
                if post(f"last-{number}") == 503:
                    break
                accepted.append(f"last-{number}")
            assert daemon.metric(UNAVAILABLE) == 1
            answer = daemon.post("/track", event("no", messageId="m", anonymousId="new"), shop.public.id)
            assert answer.status == 503
            assert answer.json()["code"] == "unavailable"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert "Retry-After" in answer.headers["access-control-expose-headers"].split(", ")
            assert answer.headers["access-control-allow-origin"] == "*"
            identity = {"anonymousId": "new", "userId": "user", "traits": {"plan": "gold"}}
            assert daemon.post("/identify/public", identity, shop.public.id).status == 503
            assert daemon.post_signed(event("no"), shop.server).status == 503
            crowd = at_once([lambda: post("no", anonymousId="crowd")] * 5)
            assert crowd == [503] * 5
            # Wrong requests are still answered with their faults.
            assert daemon.post("/track", event("no"), "wrong").status == 401
            assert daemon.post("/track", {"key": "Page View"}, shop.public.id).status == 400
            assert daemon.metric(UNAVAILABLE) == 7
            assert daemon.metric('ingestd_identifies_total{outcome="unavailable"}') == 1
            ready = daemon.ops("/readyz")
            assert ready.status == 503
            assert reason in ready.body.decode()
            assert daemon.ops("/livez").status == 200
        # The daemon recovers without requests.
        wait_until(lambda: daemon.ops("/readyz").status == 200)
        # A refused event has left nothing behind: no session, no link, no message.
        fresh = daemon.post("/track", event("after", messageId="m", anonymousId="new"), shop.public.id).json()
        assert fresh["session"]["isNew"] is True
        going_on = daemon.post("/track", event("after"), shop.public.id).json()["session"]
        assert going_on == {**known, "isNew": False}
        assert daemon.post("/track", event("after", anonymousId="crowd"), shop.public.id).json()["session"]["isNew"]
        accepted += ["after"] * 3
    daemon_log = "\n".join(daemon.log)
    assert "events cannot be stored: " in daemon_log
    assert "events can be stored again" in daemon_log
    journal = shop.stored()
    assert [record["data"]["number"] for record in journal] == accepted
    assert [record["userId"] for record in journal] == [None] * len(journal)
    # A cursor that could not be stored makes a sink receive records again.
    assert {record["id"]: record for record in shop.archived()} == {record["id"]: record for record in journal}


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=4):
        go_through(full_disk, Shop(tmp_path), "full")


COMMANDS = [
    ["store", "backup", "{disk}/backup.db"],
    ["store", "restore", "{free}/backup.db"],
    ["store", "copy", "--from", "sqlite:{free}/backup.db", "--to", "sqlite:{disk}/copy.db"],
    ["keys", "create", "--kind", "public", "--tenant", "shop"],
    ["events", "import", "{free}/records", "--format", "record", "--errors", "{disk}/errors"],
    ["sinks", "pause", "archive"],
    ["sinks", "replay", "archive", "--from", "2h", "--no-wait"],
    ["forget", "--tenant", "shop", "--anonymous", "visitor"],
    ["install-units", "--prefix", sys.prefix, "--directory", "{disk}/units"],
    ["check"],
]


@pytest.mark.parametrize("pages", [0, 1, 14], ids=["full", "a page is free", "the log does not fit"])
def test_every_command_that_finds_the_disk_full_may_be_tried_again(pages: int, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, megabytes=4):
        shop = Shop(disk)
        with shop.serve() as daemon:
            assert daemon.post("/track", event("visitor"), shop.public.id).status == 200
        shop.command("store", "backup", str(tmp_path / "backup.db"))
        (tmp_path / "records").write_text("{}\n" * 5_000)
        with full_disk(shop):
            ballast = disk / "ballast"
            for command in COMMANDS:
                with ballast.open("ab", buffering=0) as file:  # commands have taken pages, or removed their files
                    while _writes(file):
                        pass
                    file.truncate(ballast.stat().st_size - 4096 * pages)
                done = run_ingestd(*[each.format(disk=disk, free=tmp_path) for each in command], config=shop.config)
                if pages and done.returncode == 0:
                    continue  # it needed no more than that
                assert done.returncode == 75, (command, done.stderr)
                last = done.stderr.splitlines()[-1]
                assert re.search("full|No space left on device|disk I/O error|free on the disk", last)
                assert "Traceback" not in done.stderr


@pytest.mark.parametrize("was_used", [False, True])
def test_a_start_on_a_full_disk_may_be_tried_again(was_used: bool, tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=4):
        shop = Shop(tmp_path)
        if was_used:
            with shop.serve():
                pass
        with full_disk(shop):
            done = run_ingestd("serve", config=shop.config)
            assert done.returncode == 75, done.stderr
            assert str(shop.database) in done.stderr.splitlines()[-1]
        with shop.serve() as daemon:
            assert daemon.post("/track", event("after"), shop.public.id).status == 200


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    go_through(file_limit, Shop(tmp_path), "I/O error")


def test_a_database_locked_by_another_process(tmp_path: Path) -> None:
    go_through(locked_database, Shop(tmp_path), "locked")


def test_a_daemon_killed_while_the_disk_is_full_has_lost_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=4):
        shop = Shop(tmp_path)
        accepted = []
        with Daemon(shop.config) as daemon:
            assert daemon.post("/track", event("before"), shop.public.id).status == 200
            accepted.append("before")
            with full_disk(shop, daemon):
                for number in range(200):
                    if daemon.post("/track", event(f"last-{number}"), shop.public.id).status == 503:
                        break
                    accepted.append(f"last-{number}")
                daemon.kill()
        with shop.serve():
            pass
        assert [record["data"]["number"] for record in shop.stored()] == accepted
        assert {record["data"]["number"] for record in shop.archived()} == {*accepted}
