"""`ingestd store backup` beside a running daemon, and `ingestd store restore`."""

from __future__ import annotations

import re
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.journeys import TRACK
from tests.support.redis_shop import redis_shop


def refused(shop: Shop, *arguments: str) -> str:
    done = run_ingestd("store", *arguments, config=shop.config)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def session(daemon: Daemon, shop: Shop, visitor: str) -> str:
    body = {"key": "Page View", "anonymousId": visitor, "data": {}, "timestamp": "2026-11-01T00:00:00.000Z"}
    answer = daemon.post(TRACK, body, shop.public.id)
    assert answer.status == 200
    found: str = answer.json()["session"]["sessionId"]
    return found


def test_a_backup_beside_the_daemon_is_restored(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    backup = tmp_path / "backup" / "monday.db"
    backup.parent.mkdir()
    with shop.serve() as daemon:
        first = session(daemon, shop, "early")
        wait_until(lambda: len(shop.archived()) == 1)
        printed = shop.command("store", "backup", str(backup))
        assert printed.startswith(f"written and checked: {backup} (")
        assert [*backup.parent.iterdir()] == [backup]
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        assert refused(shop, "backup", str(backup)).endswith("a backup overwrites nothing; name another file")
        session(daemon, shop, "late")
        new_key = shop.create_key("public", "shop")
        assert refused(shop, "restore", str(backup)).endswith("ingestd.db: a daemon has the file; stop it first")
    before = shop.stored()
    former, loss = _restored(shop, backup)
    with closing(sqlite3.connect(former)) as connection:
        assert connection.execute("SELECT count(*) FROM journal").fetchone() == (len(before),)
    assert stat.S_IMODE(shop.database.stat().st_mode) == 0o600
    assert shop.stored() == before[:1]
    with shop.serve() as daemon:
        assert session(daemon, shop, "early") == first
        # The key was made after the backup. It gets no final refusal, since the client would drop its events.
        assert daemon.post(TRACK, {}, new_key.id).status == 503
        ready = daemon.ops("/readyz")
        assert ready.status == 503
        assert loss in ready.body.decode()
        assert daemon.metric("ingestd_store_lost") == 1
        assert shop.command("store", "acknowledge-loss") == f"acknowledged: {loss}\n"
        wait_until(lambda: daemon.ops("/readyz").status == 200)
        assert daemon.post(TRACK, {}, new_key.id).status == 401
        # The sink has the records that it had before, and the new one.
        wait_until(lambda: len(shop.archived()) == len(before) + 1)
    assert [record["id"] for record in shop.archived()][:-1] == [record["id"] for record in before]
    with shop.serve() as daemon:
        assert daemon.ops("/readyz").status == 200


def _restored(shop: Shop, backup: Path) -> tuple[str, str]:
    """Restores a backup, and returns the path of the former database and the loss."""
    restored, former, told = shop.command("store", "restore", str(backup)).splitlines()
    assert restored == f"restored: {backup}"
    assert told.endswith("after the start, run `ingestd store acknowledge-loss`")
    with closing(sqlite3.connect(shop.database)) as connection:
        ((loss,),) = connection.execute("SELECT value FROM state WHERE key LIKE 'store-loss:%'")
    assert loss.startswith("the store was restored from monday.db (at 20")
    return former.removeprefix("the former store is "), loss


def test_a_damaged_store_is_replaced_and_kept(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with Daemon(shop.config) as daemon:
        session(daemon, shop, "visitor")
        shop.command("store", "backup", str(tmp_path / "monday.db"))
        session(daemon, shop, "visitor")
        daemon.kill()
    wal = shop.database.with_name("ingestd.db-wal")
    assert wal.exists()
    shop.database.write_bytes(b"garbage" * 10_000)
    former, _ = _restored(shop, tmp_path / "monday.db")
    assert Path(former).read_bytes() == b"garbage" * 10_000
    assert Path(f"{former}-wal").exists()
    assert not wal.exists()
    assert len(shop.stored()) == 1
    with shop.serve() as daemon:
        session(daemon, shop, "visitor")


def test_the_log_of_a_killed_daemon_is_in_the_kept_file(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.command("store", "backup", str(tmp_path / "monday.db"))
    with Daemon(shop.config) as daemon:
        session(daemon, shop, "visitor")
        daemon.kill()
    former, _ = _restored(shop, tmp_path / "monday.db")
    assert not Path(f"{former}-wal").exists()
    with closing(sqlite3.connect(former)) as connection:
        assert connection.execute("SELECT count(*) FROM journal").fetchone() == (1,)
    assert shop.stored() == []


def test_what_cannot_be_backed_up_or_restored(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    other = tmp_path / "other.db"
    assert refused(shop, "restore", str(other)).endswith("other.db does not exist")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    done = run_ingestd("store", "restore", str(other), config=shop.config)
    assert done.returncode == 78
    assert "a database of another program" in done.stderr
    other.write_bytes(b"garbage" * 10_000)
    done = run_ingestd("store", "restore", str(other), config=shop.config)
    assert done.returncode == 78
    assert "file is not a database" in done.stderr
    assert refused(shop, "backup", str(tmp_path / "none" / "x.db")).endswith(
        "No such file or directory; the owner of the store must be able to write there"
    )
    assert [*tmp_path.glob("*.partial")] == []


@pytest.mark.parametrize("damage", ["a page", "the first page", "the second half", "cut"])
def test_damage_has_one_code_and_one_form_in_every_command(damage: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        session(daemon, shop, "visitor")
    content = bytearray(shop.database.read_bytes())
    size, page = len(content), b"\xff" * 4096
    match damage:
        case "a page":
            content[3 * 4096 : 4 * 4096] = page
        case "the first page":
            content[:4096] = page
        case "the second half":
            content[size // 8192 * 4096 :] = page * (size // 4096 - size // 8192)
        case _:
            del content[size // 2 :]
    damaged, other = tmp_path / "damaged.db", f"sqlite:{tmp_path / 'other.db'}"
    damaged.write_bytes(content)
    read = ["--set", f"store.url=sqlite:{damaged}"]
    for command in (
        ["store", "restore", str(damaged)],
        ["store", "backup", str(tmp_path / "backup.db"), *read],
        ["store", "copy", "--from", f"sqlite:{damaged}", "--to", other],
        ["store", "compare", "--from", f"sqlite:{damaged}", "--to", f"sqlite:{shop.database}"],
        ["events", "export", *read],
        ["serve", *read],
    ):
        done = run_ingestd(*command, config=shop.config)
        if command[0] in {"events", "serve"} and damage in {"a page", "the second half"} and done.returncode == 0:
            continue  # it need not read that part of the file
        assert done.returncode == 78, (command, done.stderr)
        assert re.search(r"ERROR ingestd: .*\bis damaged: ", done.stderr.splitlines()[-1]), (command, done.stderr)


def test_other_stores_have_their_own_tools(tmp_path: Path) -> None:
    with redis_shop(tmp_path) as shop:
        assert refused(shop, "backup", str(tmp_path / "x.db")).endswith("use the tools of its server")
        assert refused(shop, "restore", str(tmp_path / "x.db")).endswith("use the tools of its server")


def test_state_and_journal_in_two_files_have_no_common_backup(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'url = "sqlite:journal.db"'})
    assert "are two stores" in refused(shop, "backup", str(tmp_path / "x.db"))
