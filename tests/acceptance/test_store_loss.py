"""Redis comes back empty, older or replaced: the loss is reported, and no caller gets a final answer meanwhile."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Key, Reply, run_ingestd
from tests.support.journeys import TRACK
from tests.support.redis_server import RedisServer, redis_server
from tests.support.redis_shop import RedisShop, redis_shop

DECLARED = Key("declared-public-key-of-the-shop")
DECLARED_SERVER = Key("5d0e1a64-93f4-4d39-8a39-6c6f3a1f2b11", "a-secret-for-tests-only-0123456789")
STRANGER = "a-key-that-nobody-has-ever-made"
JOURNAL = {"journal": 'url = "sqlite:journal.db"'}

LOST = "ingestd_store_lost"
LOSSES = "ingestd_store_losses_total"


def event(visitor: str = "visitor", **members: Any) -> dict[str, Any]:
    return {"key": "Page View", "data": {}, "anonymousId": visitor, **members}


def declare(shop: RedisShop) -> None:
    shop.config.write_text(
        shop.config.read_text()
        + f'[[plugins.keys.declared]]\nid = "{DECLARED.id}"\nkind = "public"\ntenant = "shop"\n'
        + f'[[plugins.keys.declared]]\nid = "{DECLARED_SERVER.id}"\nkind = "server"\ntenant = "shop"\n'
        + f'secret = "{DECLARED_SERVER.secret}"\n[plugins.keys.declared.grants]\nCRM = ["ADMIN"]\n'
    )


@contextmanager
def declaring_shop(folder: Path, tables: dict[str, str] | None = None) -> Iterator[RedisShop]:
    with redis_shop(folder, tables) as shop:
        declare(shop)
        yield shop


def track(daemon: Daemon, key: Key | str) -> int:
    return daemon.post(TRACK, event(), key.id if isinstance(key, Key) else key).status


def send(daemon: Daemon, key: Key, number: str) -> None:
    """Sends an event until it is stored."""

    def is_stored() -> bool:
        status = daemon.post(TRACK, event(messageId=number), key.id).status
        assert status in {200, 503}
        return status == 200

    wait_until(is_stored)


def empty(server: RedisServer) -> None:
    """Restarts the server without its data, like a container without a volume."""
    server.kill()
    shutil.rmtree(server.folder)
    server.folder.mkdir()
    server.start()


def copy(server: RedisServer) -> Path:
    """A copy of the files of the running server."""
    kept = server.folder.with_name("kept")
    shutil.copytree(server.folder, kept)
    return kept


def put_back(server: RedisServer, kept: Path) -> None:
    server.kill()
    shutil.rmtree(server.folder)
    kept.rename(server.folder)
    server.start()


def errors(daemon: Daemon) -> list[str]:
    daemon.read_log()
    return [line for line in daemon.log if "ERROR" in line or "CRITICAL" in line or "error: " in line.lower()]


def losses(daemon: Daemon) -> list[str]:
    daemon.read_log()
    return [line for line in daemon.log if "the store " in line and "(found " in line and "acknowledge" not in line]


def archive_has(shop: RedisShop, numbers: set[str]) -> bool:
    return numbers <= {record["messageId"] for record in shop.archived() if "messageId" in record}


class Caller:
    """Sends events with a key until it is stopped, and keeps the replies."""

    def __init__(self, daemon: Daemon, key: Key) -> None:
        self.replies: list[Reply] = []
        self._daemon = daemon
        self._key = key
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(20)

    @property
    def statuses(self) -> set[int]:
        return {reply.status for reply in self.replies}

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(OSError):
                self.replies.append(self._daemon.post(TRACK, event("caller"), self._key.id))


def test_after_a_loss_unknown_keys_are_asked_to_wait_until_it_is_acknowledged(tmp_path: Path) -> None:
    with declaring_shop(tmp_path) as shop, shop.serve() as one, shop.serve() as other:
        daemons = [one, other]
        assert {track(each, key) for each in daemons for key in (shop.public, DECLARED)} == {200}
        with ExitStack() as stack:
            callers = [stack.enter_context(Caller(each, key)) for each in daemons for key in (shop.public, DECLARED)]
            with shop.redis.client() as client:
                client.flushall()
            for each in daemons:
                wait_until(lambda each=each: track(each, DECLARED) == 200 and each.metric(LOSSES) == 1)  # type: ignore[misc]
                wait_until(lambda each=each: track(each, shop.public) == 503)  # type: ignore[misc]
        # No caller has had a final answer.
        assert all(caller.statuses <= {200, 503} for caller in callers)
        for each in daemons:
            # `/readyz` names the missing keys once every plugin has loaded the keys.
            wait_until(lambda each=each: b"2 of the keys" in each.ops("/readyz").body)  # type: ignore[misc]
            refused = each.post(TRACK, event(), shop.public.id)
            assert (refused.status, int(refused.headers["retry-after"]) > 0) == (503, True)
            assert each.post(f"{TRACK}/batch", [event()], shop.public.id).status in {404, 503}
            assert each.post_signed(event(), shop.server).status == 503
            assert each.post_signed(event(), DECLARED_SERVER).status == 200
            # Answers that do not depend on lost keys are unchanged.
            assert each.post_signed(event(), Key(DECLARED_SERVER.id, "another")).status == 401
            assert each.post(TRACK, event(), DECLARED_SERVER.id).status == 401
            assert each.post(TRACK, event(), None).status == 401
            ready = each.ops("/readyz")
            assert ready.status == 503
            assert b"came back empty" in ready.body
            assert b"acknowledge-loss" in ready.body
            assert (each.metric(LOST), each.metric("ingestd_store_up")) == (1, 1)
            assert len(losses(each)) == 1
        checked = run_ingestd("check", config=shop.config)
        assert checked.returncode == 75
        assert "FAULT: the store came back empty" in checked.stdout
        # The loss outlasts a restart, although the new daemon does not know the lost keys.
        with shop.serve() as third:
            assert third.ops("/readyz").status == 503
            assert track(third, shop.public) == 503
            assert track(third, DECLARED) == 200
            daemons.append(third)
            assert "acknowledged: the store came back empty" in shop.command("store", "acknowledge-loss")
            for each in daemons:
                wait_until(lambda each=each: track(each, shop.public) == 401, 2)  # type: ignore[misc]
                assert each.ops("/readyz").status == 200
                assert each.metric(LOST) == 0
        assert "no loss" in shop.command("store", "acknowledge-loss")
        checked = run_ingestd("check", config=shop.config)
        assert "came back empty" not in checked.stdout
        wait_until(lambda: len(shop.archived()) >= len(shop.exported()))
        ids = {record["id"] for record in shop.archived()}
        assert {record["id"] for record in shop.exported()} <= ids


def test_if_all_keys_are_declared_a_loss_is_repaired_at_once(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        shop = RedisShop(tmp_path, redis=server)
        declare(shop)
        with server.client() as client:
            client.flushall()
        with shop.serve() as daemon:
            send(daemon, DECLARED, "before")
            wait_until(lambda: archive_has(shop, {"before"}))
            with Caller(daemon, DECLARED) as caller:
                empty(server)
                wait_until(lambda: daemon.metric(LOSSES) == 1 and daemon.ops("/readyz").status == 200)
            assert caller.statuses <= {200, 503}
            wait_until(lambda: track(daemon, STRANGER) == 401, 2)
            assert daemon.metric(LOST) == 0
            assert len(losses(daemon)) == 1
            send(daemon, DECLARED, "after")
            wait_until(lambda: archive_has(shop, {"after"}))
            daemon.read_log()
            assert any("nothing is missing" in line for line in daemon.log)


def test_an_older_state_is_noticed_and_keys_keep_their_latest_state(tmp_path: Path) -> None:
    with declaring_shop(tmp_path) as shop, shop.serve() as daemon:
        revoked = shop.create_key("public", "shop")
        send(daemon, shop.public, "kept")
        wait_until(lambda: archive_has(shop, {"kept"}))
        wait_until(lambda: track(daemon, revoked) == 200)
        kept = copy(shop.redis)
        for number in range(20):
            send(daemon, shop.public, f"lost-{number}")
        shop.command("keys", "revoke", revoked.id)
        wait_until(lambda: track(daemon, revoked) == 401)
        wait_until(lambda: archive_has(shop, {"lost-19"}))
        with Caller(daemon, DECLARED) as caller:
            put_back(shop.redis, kept)
            wait_until(lambda: daemon.metric(LOSSES) == 1)
        assert caller.statuses <= {200, 503}
        wait_until(lambda: daemon.ops("/readyz").status == 200)
        [told] = losses(daemon)
        assert "older content" in told
        assert track(daemon, revoked) == 401
        assert track(daemon, shop.public) == 200
        # Cursors are those of the older state. New records are delivered, although others were lost.
        numbers = {f"new-{number}" for number in range(5)}
        for new in sorted(numbers):
            send(daemon, shop.public, new)
        wait_until(lambda: archive_has(shop, numbers))


def test_keys_that_were_lost_from_an_older_state_can_be_restored(tmp_path: Path) -> None:
    with declaring_shop(tmp_path) as shop, shop.serve() as daemon:
        send(daemon, DECLARED, "kept")
        kept = copy(shop.redis)
        late = shop.create_key("public", "shop")
        wait_until(lambda: track(daemon, late) == 200)
        with shop.redis.client() as client:
            found = {key: client.dump(key) for key in client.scan_iter("ingestd:keys*")}
        put_back(shop.redis, kept)
        wait_until(lambda: daemon.metric(LOST) == 1)
        wait_until(lambda: track(daemon, late) == 503)
        wait_until(lambda: b"1 of the keys" in daemon.ops("/readyz").body)
        with shop.redis.client() as client:
            for key, content in found.items():
                client.restore(key, 0, content, replace=True)
        wait_until(lambda: track(daemon, late) == 200)
        wait_until(lambda: daemon.ops("/readyz").status == 200)
        assert track(daemon, STRANGER) == 401
        assert daemon.metric(LOSSES) == 1


def test_keys_that_have_vanished_from_the_store_are_a_loss_too(tmp_path: Path) -> None:
    """The keys could vanish by an eviction or by a manual command."""
    with declaring_shop(tmp_path) as shop, shop.serve() as daemon:
        assert track(daemon, shop.public) == 200
        with Caller(daemon, DECLARED) as caller:
            with shop.redis.client() as client:
                client.delete(*client.scan_iter("ingestd:keys*"))
            wait_until(lambda: track(daemon, shop.public) == 503)
            wait_until(lambda: b"has lost keys" in daemon.ops("/readyz").body)
            wait_until(lambda: daemon.post_signed(event(), DECLARED_SERVER).status == 200)
        assert caller.statuses <= {200, 503}
        shop.command("store", "acknowledge-loss")
        wait_until(lambda: track(daemon, shop.public) == 401, 2)
        assert len(losses(daemon)) == 1


def test_the_redis_of_another_shop_is_distinguished_from_ours(tmp_path: Path) -> None:
    with declaring_shop(tmp_path) as shop, redis_shop(tmp_path / "other", host="127.0.0.1") as other:
        declared = Key("declared-public-key-of-another-shop")
        other.config.write_text(
            other.config.read_text()
            + f'[[plugins.keys.declared]]\nid = "{declared.id}"\nkind = "public"\ntenant = "x"\n'
        )
        with other.serve() as theirs:
            send(theirs, declared, "theirs")
        own = shop.create_key("public", "shop")  # the other keys are in both servers
        with shop.serve() as daemon:
            assert track(daemon, own) == 200
            for number in range(5):
                send(daemon, shop.public, f"ours-{number}")
            wait_until(lambda: archive_has(shop, {"ours-4"}))
            other.redis.kill()
            shop.redis.kill()
            shutil.rmtree(shop.redis.folder)
            other.redis.folder.rename(shop.redis.folder)
            shop.redis.start()
            wait_until(lambda: daemon.metric(LOSSES) == 1 and daemon.metric(LOST) == 1)
            [told] = losses(daemon)
            assert "is another one" in told
            send(daemon, DECLARED, "next")
            wait_until(lambda: archive_has(shop, {"next"}))
            wait_until(lambda: track(daemon, own) == 503)  # known until the plugin has loaded the keys of the other one
            assert track(daemon, declared) == 200, "what the other one has stays as it was"


def test_with_the_journal_in_a_file_a_lost_state_is_noticed_also_at_the_start(tmp_path: Path) -> None:
    with declaring_shop(tmp_path, JOURNAL) as shop:
        with shop.serve() as daemon:
            send(daemon, shop.public, "first")
            wait_until(lambda: archive_has(shop, {"first"}))
            with shop.redis.client() as client:
                client.flushall()
            wait_until(lambda: daemon.metric(LOST) == 1)
            send(daemon, DECLARED, "second")
            wait_until(lambda: archive_has(shop, {"second"}))
            shop.command("store", "acknowledge-loss")
            wait_until(lambda: track(daemon, shop.public) == 401, 2)
        with shop.serve() as daemon:  # a start without a loss
            assert losses(daemon) == []
        empty(shop.redis)
        with shop.serve() as daemon:
            assert len(losses(daemon)) == 1
            assert daemon.ops("/readyz").status == 503
            assert track(daemon, STRANGER) == 503
            send(daemon, DECLARED, "third")
            wait_until(lambda: archive_has(shop, {"third"}))
            shop.command("store", "acknowledge-loss")
            wait_until(lambda: track(daemon, STRANGER) == 401, 2)
        with shop.serve() as daemon:
            assert losses(daemon) == []


def shorten(database: Path) -> None:
    """Removes the journal's records from a file, and leaves the cursors."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM journal")
        connection.execute("DELETE FROM sqlite_sequence WHERE name = 'journal'")
        connection.execute("UPDATE cursors SET position = 50")


@pytest.mark.parametrize("apart", [True, False])
def test_a_cursor_beyond_the_end_of_the_journal_is_set_back(tmp_path: Path, *, apart: bool) -> None:
    with declaring_shop(tmp_path, JOURNAL if apart else {}) as shop:
        with shop.serve() as daemon:
            for number in range(5):
                send(daemon, DECLARED, f"first-{number}")
            wait_until(lambda: archive_has(shop, {"first-4"}))
        if apart:
            shorten(shop.folder / "journal.db")
        else:
            with shop.redis.client() as client:
                client.delete(*client.keys("ingestd:journal*"), "ingestd:meta")
        with shop.serve() as daemon:
            for number in range(7):
                send(daemon, DECLARED, f"second-{number}")
            wait_until(lambda: archive_has(shop, {f"second-{number}" for number in range(7)}))
            daemon.read_log()
            told = [line for line in daemon.log if "beyond the journal's end" in line]
            assert {"attribution", "sink:archive"} == {
                name for name in ("attribution", "sink:archive") if name in str(told)
            }


def test_a_journal_that_is_older_than_the_state_skips_nothing(tmp_path: Path) -> None:
    with declaring_shop(tmp_path, JOURNAL) as shop:
        with shop.serve() as daemon:
            send(daemon, DECLARED, "first")
            wait_until(lambda: archive_has(shop, {"first"}))
        kept = (shop.folder / "journal.db").read_bytes()
        with shop.serve() as daemon:
            for number in range(5):
                send(daemon, DECLARED, f"lost-{number}")
            wait_until(lambda: archive_has(shop, {"lost-4"}))
        for leftover in shop.folder.glob("journal.db-*"):
            leftover.unlink()
        (shop.folder / "journal.db").write_bytes(kept)
        with shop.serve() as daemon:
            for number in range(7):
                send(daemon, DECLARED, f"second-{number}")
            wait_until(lambda: archive_has(shop, {f"second-{number}" for number in range(7)}))
            daemon.read_log()
            assert any("the journal is older than the state" in line for line in daemon.log)
