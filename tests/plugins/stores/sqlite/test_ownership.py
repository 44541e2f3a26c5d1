"""The owner of a file: one daemon, which commands ask for changes. The file after a killed daemon."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ingestd.api.errors import CommandError, ConfigError, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Cursor
from ingestd.api.store import Field
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.plugins.stores.sqlite.files import locate
from tests.support.journals import until

OWNER = [sys.executable, str(Path(__file__).parents[3] / "support" / "sqlite_owner.py")]
NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon


@contextmanager
def owner(path: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has opened the file as a daemon."""
    process = subprocess.Popen([*OWNER, str(path), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def opened(folder: Path, *, serving: bool = True) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(folder / "ingestd.db", cache=100, busy_timeout=1.0)
    await backend.open(serving=serving)
    try:
        yield backend
    finally:
        await backend.close()


async def test_a_second_daemon_is_refused_with_instructions(tmp_path: Path) -> None:
    with owner(tmp_path / "ingestd.db", "serve") as process:
        with pytest.raises(ConfigError, match=rf"process {process.pid},.* stop that one, or set another file"):
            await SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0).open(serving=True)
        (tmp_path / "link.db").symlink_to("ingestd.db")
        with pytest.raises(ConfigError, match="in use"):
            await SqliteBackend(locate("sqlite:link.db", tmp_path), cache=100, busy_timeout=1.0).open(serving=True)
        process.kill()
        process.wait()
        async with opened(tmp_path):
            pass


async def test_acknowledged_records_survive_a_kill(tmp_path: Path) -> None:
    with owner(tmp_path / "ingestd.db", "write") as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(2000)]
        process.kill()
        acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
    async with opened(tmp_path) as backend:
        records = await backend.journal.read(0, 1_000_000)
        names = [record.body.decode() for record in records]
        assert set(acknowledged) <= set(names)
        assert len(set(names)) == len(names)
        positions = [record.position for record in records]
        assert positions == sorted(set(positions))
        state = backend.store.begin(1000)
        assert all([await state.get(name) == "x" for name in names]), "each record with its state"
        assert backend.write_back is not None
        for _ in range(2):  # write entries of the log into rows
            await backend.write_back.compact()
        with closing(sqlite3.connect(backend.path)) as other:
            (count,) = other.execute("SELECT count(*) FROM state").fetchone()
        assert count == len(names) + 16, "and each state with its record"


async def test_a_command_changes_the_state_through_a_daemon_in_another_process(tmp_path: Path) -> None:
    with owner(tmp_path / "ingestd.db", "serve"):
        async with opened(tmp_path, serving=False) as command:
            state = command.store.begin(NOW)
            assert await state.put("key", "value", 1000) is None
            assert await state.swap("key", "value", "swapped")
            assert await state.renew("session", "one", 1000) == ("one", True)
            await state.merge("profile", {"plan": Field(1, "gold “é”")})
            assert await state.fields("profile") == {"plan": Field(1, "gold “é”")}
            await state.delete("nothing")
            record = Record("note", NOW, '{"by": "“é”"}'.encode())
            position = await command.journal.commit([record], state)
            assert list(await command.journal.read(0, 10)) == [replace(record, position=position)]
            assert await command.journal.last() == position
            again = command.store.begin(NOW)
            assert await again.get("key") == "swapped"
            await command.store.commit(again)  # without a write there is no request
            assert await command.describe()
    async with opened(tmp_path) as backend:
        state = backend.store.begin(NOW)
        assert await state.get("key") == "swapped"
        assert await state.get("session") == "one"
        assert await state.fields("profile") == {"plan": Field(1, "gold “é”")}


async def test_the_daemon_sees_what_a_command_wrote(tmp_path: Path) -> None:
    async with opened(tmp_path) as daemon, opened(tmp_path, serving=False) as command:
        assert await daemon.store.begin(NOW).get("key") is None  # cached as absent now
        state = command.store.begin(NOW)
        await state.put("key", "value")
        await command.store.commit(state)
        assert await daemon.store.begin(NOW).get("key") == "value"


@pytest.mark.parametrize("cache", [1, 100])
async def test_a_change_by_the_daemon_during_a_command_is_a_conflict(tmp_path: Path, cache: int) -> None:
    daemon = SqliteBackend(tmp_path / "ingestd.db", cache=cache, busy_timeout=1.0)
    await daemon.open(serving=True)
    async with opened(tmp_path, serving=False) as command:
        state = command.store.begin(NOW)
        await state.put("first", "of the command")
        assert await state.get("key") is None
        await state.put("other", "of the command")
        unit = daemon.store.begin(NOW)
        await unit.put("key", "of the daemon")
        await daemon.store.commit(unit)
        with pytest.raises(WriteConflict):
            await command.journal.commit([Record("note", NOW, b"{}")], state)
        seen = daemon.store.begin(NOW)
        found = [await seen.get(key) for key in ("first", "key", "other")]
        assert found == [None, "of the daemon", None]
        assert await daemon.journal.last() == 0
        await daemon.store.commit(seen)
    await daemon.close()


async def test_simultaneous_commands_are_executed_one_after_the_other(tmp_path: Path) -> None:
    async with opened(tmp_path), opened(tmp_path, serving=False) as command:

        async def take(number: int) -> int | None:
            state = command.store.begin(NOW)
            assert await state.swap("key", None, str(number))
            try:
                await command.store.commit(state)
            except WriteConflict:
                return None
            return number

        won = [number for number in await asyncio.gather(*map(take, range(10))) if number is not None]
        assert len(won) == 1
        assert await command.store.begin(NOW).get("key") == str(won[0])


async def test_a_request_is_withdrawn_if_the_daemon_does_not_answer(tmp_path: Path) -> None:
    with owner(tmp_path / "ingestd.db", "serve") as process:
        async with opened(tmp_path, serving=False) as command:
            process.send_signal(signal.SIGSTOP)
            state = command.store.begin(NOW)
            await state.put("key", "value")
            with pytest.raises(CommandError, match="nothing was changed"):
                await command.store.commit(state)
            process.send_signal(signal.SIGCONT)
            later = command.store.begin(NOW)
            await later.put("later", "value")
            await command.store.commit(later)
            assert await command.store.begin(NOW).get("key") is None


async def test_later_changes_of_arguments_do_not_change_the_request(tmp_path: Path) -> None:
    async with opened(tmp_path), opened(tmp_path, serving=False) as command:
        state = command.store.begin(NOW)
        fields, members = {"a": Field(1, "x")}, ["one"]
        await state.put(value="value", ttl=5, key="key")
        await state.merge("fields", fields)
        await state.push("set", "one", 1, keep=2)
        await state.push("set", "two", 2, keep=2)
        (await state.fields("fields")).clear()
        (await state.window("set")).clear()
        await state.pull("set", members)
        fields["b"] = Field(2, "y")
        members.append("two")
        await command.store.commit(state)
        later = command.store.begin(NOW)
        assert await later.get("key") == "value"
        assert await later.fields("fields") == {"a": Field(1, "x")}
        assert await later.window("set") == [("two", 2)]


@pytest.mark.logs("a command's request cannot be done")
async def test_an_invalid_request_does_not_block_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path), opened(tmp_path, serving=False) as command:
        with closing(sqlite3.connect(command.path)) as other, other:
            for text in b"junk", b'{"now": 1, "operations": [["close", ["k"], null]], "records": []}', b'{"now": 1}':
                other.execute("INSERT INTO control (at, request) VALUES (0, ?)", (text,))
            # Valid JSON with an invalid argument: the first operation is undone.
            text = b'{"now": 1, "operations": [["put", ["k", "v"], null], ["get", ["k", 1], null]], "records": []}'
            other.execute("INSERT INTO control (at, request) VALUES (0, ?)", (text,))
        other.close()
        state = command.store.begin(NOW)
        assert await state.get("k") is None
        await state.put("key", "value")
        await command.store.commit(state)
        assert await command.store.begin(NOW).get("key") == "value"
        assert await command.store.begin(NOW).get("k") is None


async def test_a_command_cannot_consume_or_store_invalid_text(tmp_path: Path) -> None:
    async with opened(tmp_path), opened(tmp_path, serving=False) as command:
        for work in (
            command.journal.wait(0),
            command.journal.acquire_cursor("consumer", "now"),
            command.journal.commit([], command.store.begin(NOW), Cursor("consumer", 1)),
        ):
            with pytest.raises(CommandError, match="only the daemon"):
                await work
        state = command.store.begin(NOW)
        await state.put("key", "\ud800")
        with pytest.raises(CommandError, match="cannot be stored"):
            await command.store.commit(state)


async def test_without_a_daemon_a_command_is_the_owner(tmp_path: Path) -> None:
    async with opened(tmp_path, serving=False) as command:
        state = command.store.begin(NOW)
        await state.put("key", "value")
        await command.store.commit(state)
    async with opened(tmp_path) as daemon:
        assert await daemon.store.begin(NOW).get("key") == "value"


@pytest.mark.parametrize("serving", [True, False])
async def test_a_start_waits_for_a_command_to_end(tmp_path: Path, serving: bool) -> None:
    async with opened(tmp_path, serving=False):
        backend = SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0)
        opening = asyncio.ensure_future(backend.open(serving=serving))
        await asyncio.sleep(0.1)
        assert not opening.done()
    await asyncio.wait_for(opening, 5)
    await backend.close()


async def test_a_request_of_an_ended_command_is_executed_at_the_next_start(tmp_path: Path) -> None:
    with owner(tmp_path / "ingestd.db", "serve") as process:
        async with opened(tmp_path, serving=False) as command:
            process.send_signal(signal.SIGSTOP)
            state = command.store.begin(NOW)
            await state.put("key", "value")
            asking = asyncio.ensure_future(command.store.commit(state))

            def asked() -> int:
                (count,) = other.execute("SELECT count(*) FROM control").fetchone()
                return int(count)

            other = sqlite3.connect(command.path)
            await until(asked)
            other.close()
            asking.cancel()
    async with opened(tmp_path) as daemon:
        assert await daemon.store.begin(NOW).get("key") == "value"


async def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / "ingestd.db")) as other, other:
        other.execute("PRAGMA user_version = 99")
    for serving in True, False:
        with pytest.raises(ConfigError, match=r"newer ingestd .*version 99"):
            await SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0).open(serving=serving)


async def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ingestd.db")) as other, other:
        other.execute("CREATE TABLE music (title)")
    with pytest.raises(ConfigError, match="another program"):
        await SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0).open(serving=True)
    (tmp_path / "ingestd.db").write_bytes(b"no database at all, but some text" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        await SqliteBackend(tmp_path / "ingestd.db", cache=100, busy_timeout=1.0).open(serving=True)


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/ingestd\.db: cannot be opened"):
        await SqliteBackend(tmp_path / "file" / "ingestd.db", cache=100, busy_timeout=1.0).open(serving=True)


async def test_other_users_cannot_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with opened(tmp_path / "made") as backend:
            state = backend.store.begin(NOW)
            await state.put("key", "secret")
            await backend.store.commit(state)
            modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "made").iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["ingestd.db", "ingestd.db-wal", "ingestd.db-shm", "ingestd.db.lock"], 0o600)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["all may enter", "only root may enter"])
def test_a_command_run_as_root_becomes_the_owner_of_the_file(there: bool, mode: int) -> None:
    nobody = pwd.getpwnam("nobody")
    # Not below tmp_path, because only root may enter its parents.
    parent = Path(tempfile.mkdtemp())
    folder = parent / "state"
    folder.mkdir()
    parent.chmod(mode)
    try:
        if there:
            asyncio.run(_make(folder))
            for path in folder.iterdir():
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        done = subprocess.run(
            [*OWNER, str(folder / "ingestd.db"), "command"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        uid, gid = nobody.pw_uid, nobody.pw_gid
        assert done.stdout.strip() == f"{(uid,) * 3} {(gid,) * 3} {[gid]}"
        assert {path.stat().st_uid for path in folder.iterdir()} == {uid}
    finally:
        shutil.rmtree(parent)


async def _make(folder: Path) -> None:
    async with opened(folder):
        pass


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/lib/x.db", "/var/lib/x.db"),
        ("sqlite:////var/lib/x.db", "/var/lib/x.db"),
        ("sqlite:x.db", "/base/x.db"),
        ("sqlite:folder/x.db", "/base/folder/x.db"),
        ("sqlite:/abs/x.db", "/abs/x.db"),
    ],
)
def test_the_path_of_a_url(url: str, path: str) -> None:
    assert locate(url, Path("/base")) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/x.db",
        "sqlite:////",
        "sqlite://///x.db",
        "sqlite:x.db?mode=ro",
        "sqlite:x/",
    ],
)
def test_other_urls_are_refused_with_the_expected_form(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sqlite:///absolute/path\.db"):
        locate(url, Path("/base"))
