from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ingestd.api.errors import CommandError, ConfigError, Unavailable
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.api.hookspecs import Daemon
from ingestd.api.options import read_options
from ingestd.api.store import State, Store
from ingestd.api.times import now, parse_time
from ingestd.cli.command_line import CommandLine
from ingestd.plugins.auth.key_registry import KeyRegistry, read_keys
from ingestd.plugins.auth.keys import KeysPlugin
from tests.support.backends import sqlite_daemon


class KeyCommands:
    """`ingestd keys …` on the store of a daemon."""

    def __init__(self, daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
        self._daemon = daemon
        self._capsys = capsys
        self._line = CommandLine()
        KeysPlugin(KeysPlugin.Options()).register_commands(self._line)

    async def __call__(self, name: str, *arguments: str) -> str:
        given = self._line.parser.parse_args(["keys", name, *arguments])
        self._capsys.readouterr()
        await given.run(given, self._daemon)
        return self._capsys.readouterr().out

    async def create(self, *arguments: str) -> dict[str, Any]:
        created: dict[str, Any] = json.loads(await self("create", *arguments, "--json"))
        return created


SERVER = ("--kind", "server", "--tenant", "shop", "--app", "CRM", "--permission", "ADMIN")
PUBLIC = ("--kind", "public", "--tenant", "shop")


def request(credential: str | None, endpoint: Endpoint = Endpoint.TRACK) -> Request:
    headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
    return Request(endpoint, headers, b"{}", received_at=now())


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. The promise is two seconds, but a busy machine may need more."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_public_key_is_its_tenants_principal_without_grants_on_every_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        created = await KeyCommands(daemon, capsys).create(*PUBLIC)
        assert re.fullmatch(r"pk_[A-Za-z0-9_-]{43}", created["id"])
        assert "secret" not in created
        plugin = KeysPlugin(KeysPlugin.Options())
        await plugin.startup(daemon)
        for endpoint in Endpoint.BUILT_IN:
            assert plugin.authenticate(request(created["id"], endpoint)) == Principal("shop", created["id"], {})


async def test_no_other_credential_is_a_public_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        public, server = await keys.create(*PUBLIC), await keys.create(*SERVER)
        plugin = KeysPlugin(KeysPlugin.Options())
        await plugin.startup(daemon)
        others = [server["id"], server["secret"], public["id"][:-1], public["id"].swapcase(), "é\udc80", "pk_"]
        for credential in [None, "", *others]:
            assert plugin.authenticate(request(credential)) is None


async def test_a_server_key_has_an_id_a_secret_and_its_grants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        created = await keys.create(*SERVER, "--permission", "READ", "--label", "Rücksendungen")
        bare = await keys.create("--kind", "server", "--tenant", "shop")
        assert str(UUID(created["id"])) == created["id"]
        assert len(created["secret"]) >= 43
        assert created["secret"] != bare["secret"]
        assert (created["kind"], created["tenant"], created["label"]) == ("server", "shop", "Rücksendungen")
        registry = KeyRegistry()
        await registry.start(daemon, name="keys")
        for spelling in created["id"], created["id"].upper():
            key = registry.server(spelling)
            assert key is not None
            assert key.principal() == Principal("shop", created["id"], {"CRM": frozenset({"ADMIN", "READ"})})
            assert key.secrets(now()) == [created["secret"]]
        ungranted = registry.server(bare["id"])
        assert ungranted is not None
        assert ungranted.principal().grants == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PUBLIC, "--app", "CRM"), "for server keys"),
        ((*PUBLIC, "--permission", "ADMIN"), "for server keys"),
        (("--kind", "server", "--tenant", "shop", "--permission", "ADMIN"), "--app CRM"),
    ],
)
async def test_an_invalid_grant_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        with pytest.raises(CommandError, match=message):
            await keys("create", *arguments)
        assert await keys("list", "--json") == ""


@pytest.mark.parametrize("tenant", ["", "a b", "shöp", "x" * 65, "a/b", "a\n"])
async def test_an_invalid_tenant_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tenant: str
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        with pytest.raises(SystemExit):
            await KeyCommands(daemon, capsys)("create", "--kind", "public", "--tenant", tenant)
        assert "1 to 64 letters" in capsys.readouterr().err


async def test_secrets_are_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        created = await keys.create(*SERVER)
        rotated = json.loads(await keys("rotate", created["id"], "--json"))
        shown = await keys("create", *SERVER, "--label", "for people")
        assert "shown once" in shown
        in_text = re.search(r"secret: +(\S+)", shown)
        assert in_text is not None
        listed = await keys("list") + await keys("list", "--json")
        for secret in created["secret"], rotated["secret"], in_text[1]:
            assert secret not in listed


async def test_keys_are_listed_for_people_and_as_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        public, server = await keys.create(*PUBLIC, "--label", "web"), await keys.create(*SERVER)
        await keys("revoke", public["id"])
        rows = {row["id"]: row for row in map(json.loads, (await keys("list", "--json")).splitlines())}
        assert rows.keys() == {public["id"], server["id"]}
        assert rows[public["id"]]["label"] == "web"
        assert parse_time(rows[public["id"]]["revokedAt"]) is not None
        assert rows[server["id"]]["revokedAt"] is None
        assert rows[server["id"]]["grants"] == {"CRM": ["ADMIN"]}
        table = await keys("list")
        assert re.search(rf"^{public['id']} +public +shop +revoked +none +\S+Z +web$", table, re.MULTILINE)
        assert re.search(rf"^{server['id']} +server +shop +live +CRM:ADMIN +\S+Z$", table, re.MULTILINE)


async def test_rotation_gives_a_new_secret_and_keeps_the_old_for_the_grace_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        created = await keys.create(*SERVER)
        rotated = json.loads(await keys("rotate", created["id"].upper(), "--grace", "1h", "--json"))
        assert rotated["id"] == created["id"]
        assert rotated["secret"] != created["secret"]
        until = parse_time(rotated["previousUntil"])
        assert until is not None
        assert abs(until - now() - 3_600_000) < 60_000
        key = (await read_keys(daemon.store.begin(now())))[created["id"]]
        assert key.secrets(until - 1) == [rotated["secret"], created["secret"]]
        assert key.secrets(until) == [rotated["secret"]]
        again = json.loads(await keys("rotate", created["id"], "--grace", "0s", "--json"))
        key = (await read_keys(daemon.store.begin(now())))[created["id"]]
        assert key.secrets(now()) == [again["secret"]]
        assert "secret:" in await keys("rotate", created["id"])


async def test_a_refused_rotation_names_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        public, server = await keys.create(*PUBLIC), await keys.create(*SERVER)
        with pytest.raises(CommandError, match=r"create a new one.*revoke the old"):
            await keys("rotate", public["id"])
        await keys("revoke", server["id"])
        with pytest.raises(CommandError, match="revoked; create a new one"):
            await keys("rotate", server["id"])
        with pytest.raises(SystemExit):
            await keys("rotate", server["id"], "--grace", "soon")
        assert "expected a number with a unit" in capsys.readouterr().err


async def test_an_unknown_id_is_refused_with_the_nearest_id_but_no_whole_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        with pytest.raises(CommandError, match=r"there is no such key.*keys list"):
            await keys("revoke", "pk_nothing")
        for made in await keys.create(*SERVER), await keys.create(*PUBLIC):
            for name in "revoke", "rotate":
                with pytest.raises(CommandError, match=f"did you mean {made['id'][:8]}") as error:
                    await keys(name, made["id"][:-1])
                assert made["id"][:-1] not in str(error.value)


async def test_a_revoked_key_stays_revoked_and_its_secrets_are_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        server = await keys.create(*SERVER)
        assert server["id"] in await keys("revoke", server["id"].upper())
        first = (await read_keys(daemon.store.begin(now())))[server["id"]]
        await keys("revoke", server["id"])
        assert (await read_keys(daemon.store.begin(now())))[server["id"]] == first
        assert first.secrets(now()) == []
        registry = KeyRegistry()
        await registry.refresh(daemon.store)
        assert registry.server(server["id"]) is None


async def test_a_running_daemon_sees_the_changes_of_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = KeysPlugin(KeysPlugin.Options())
        await plugin.startup(daemon)
        async with sqlite_daemon(tmp_path, serving=False) as beside:
            keys = KeyCommands(beside, capsys)
            public = await keys.create(*PUBLIC)
            await eventually(lambda: plugin.authenticate(request(public["id"])) is not None)
            await keys("revoke", public["id"])
            await eventually(lambda: plugin.authenticate(request(public["id"])) is None)


async def test_simultaneous_commands_lose_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with sqlite_daemon(tmp_path) as daemon, sqlite_daemon(tmp_path, serving=False) as beside:
        made = [await KeyCommands(daemon, capsys).create(*SERVER) for _ in range(3)]
        commands = [KeyCommands(store, capsys) for store in (daemon, beside, beside)]
        ids = [key["id"] for key in made]
        await asyncio.gather(*(keys("revoke", key_id) for keys, key_id in zip(commands, ids, strict=True)))
        assert all(key.revoked_at is not None for key in (await read_keys(daemon.store.begin(now()))).values())


async def test_a_store_takes_no_more_keys_than_one_entry_should_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.auth.key_registry._MOST_BYTES", 300)
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        created = [json.loads(await keys("create", *PUBLIC, "--json")) for _ in range(2)]
        with pytest.raises(CommandError, match="the store has 2 keys, revoked ones included, and takes no more"):
            await keys("create", *PUBLIC)
        await keys("revoke", created[0]["id"])


async def test_keys_survive_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        live, revoked = await keys.create(*PUBLIC), await keys.create(*PUBLIC)
        await keys("revoke", revoked["id"])
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = KeysPlugin(KeysPlugin.Options())
        await plugin.startup(daemon)
        assert plugin.authenticate(request(live["id"])) == Principal("shop", live["id"])
        assert plugin.authenticate(request(revoked["id"])) is None


class Failing(Store):
    """A store that fails while `cut` is true."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cut = False

    def begin(self, now: int, *, event: bool = False, step: bool = False) -> State:
        if self.cut:
            raise Unavailable("the disk is gone")
        return self.store.begin(now)

    async def commit(self, state: State) -> None:
        await self.store.commit(state)

    def discard(self, state: State) -> None:
        self.store.discard(state)

    def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        return self.store.scan(kind)


@pytest.mark.logs("the disk is gone")
async def test_while_the_store_cannot_be_read_known_keys_stay_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        known = await keys.create(*PUBLIC)
        real = daemon.store
        daemon.store = failing = Failing(real)
        plugin = KeysPlugin(KeysPlugin.Options())
        await plugin.startup(daemon)
        failing.cut = True
        await eventually(lambda: bool(caplog.records))
        assert plugin.authenticate(request(known["id"])) is not None
        failing.cut = False
        later = await keys.create(*PUBLIC)
        await eventually(lambda: plugin.authenticate(request(later["id"])) is not None)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert known["id"] not in caplog.text


async def test_a_clock_set_back_loses_no_revocation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        keys = KeyCommands(daemon, capsys)
        public = await keys.create(*PUBLIC)
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600_000_000_000)
        await keys("revoke", public["id"])
        registry = KeyRegistry()
        await registry.refresh(daemon.store)
        assert registry.public(public["id"]) is None


# Keys that the configuration declares


def declared(folder: Path, *tables: dict[str, Any]) -> KeysPlugin:
    options = read_options(
        KeysPlugin.Options, {"declared": list(tables)}, path="plugins.keys", source="ingestd.toml", base=folder
    )
    return KeysPlugin(options)


WEB = {"id": "declared-public-key", "kind": "public", "tenant": "shop"}
BACKEND: dict[str, Any] = {
    "id": "6F9619FF-8B86-D011-B42D-00CF4FC964FF",
    "kind": "server",
    "tenant": "shop",
    "secret": {"file": "backend.secret"},
    "grants": {"CRM": ["ADMIN"]},
}


async def test_declared_keys_are_keys_like_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "backend.secret").write_text("new-secret\n")
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = declared(tmp_path, WEB, {**BACKEND, "previous_secret": "old-secret"})
        await plugin.startup(daemon)
        assert plugin.authenticate(request("declared-public-key")) == Principal("shop", "declared-public-key")
        registry = KeyRegistry()
        await registry.refresh(daemon.store)
        server = registry.server(BACKEND["id"])
        assert server is not None
        assert server.principal() == Principal("shop", BACKEND["id"].lower(), {"CRM": frozenset({"ADMIN"})})
        assert server.secrets(now()) == ["new-secret", "old-secret"]
        keys = KeyCommands(daemon, capsys)
        assert "declared" in await keys("list")
        with pytest.raises(CommandError, match="declared in the configuration; remove it there"):
            await keys("revoke", "declared-public-key")
        with pytest.raises(CommandError, match="declared in the configuration; give it a new secret there"):
            await keys("rotate", BACKEND["id"])


async def test_a_key_that_is_no_longer_declared_is_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        made = await KeyCommands(daemon, capsys).create(*PUBLIC)
        await declared(tmp_path, WEB).startup(daemon)
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = declared(tmp_path)
        await plugin.startup(daemon)
        assert plugin.authenticate(request("declared-public-key")) is None
        assert plugin.authenticate(request(made["id"])) is not None
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = declared(tmp_path, {**WEB, "tenant": "other"})
        await plugin.startup(daemon)
        assert plugin.authenticate(request("declared-public-key")) == Principal("other", "declared-public-key")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([WEB, WEB], "declared: a key is declared twice"),
        ([{**WEB, "id": "short"}], r"declared\[0\]\.id: .*16 to 256 visible"),
        ([{**WEB, "id": "with a space, and long"}], r"declared\[0\]\.id: .*16 to 256 visible"),
        ([WEB, {**WEB, "tenant": "no tenant"}], r"declared\[1\]\.tenant: expected a name"),
        ([{**WEB, "grants": {"CRM": ["ADMIN"]}}], r"declared\[0\]: .*neither secrets nor grants"),
        ([{**WEB, "secret": "s"}], r"declared\[0\]: .*neither secrets nor grants"),
        ([{**WEB, "previous_secret": "s"}], r"declared\[0\]: .*neither secrets nor grants"),
        ([{**BACKEND, "id": "backend"}], r"declared\[0\]\.id: .*is a UUID"),
        ([{key: value for key, value in BACKEND.items() if key != "secret"}], r"declared\[0\]\.secret: must be given"),
        ([{**BACKEND, "secret": {"file": "missing"}}], r"declared\[0\]\.secret: the file .*missing cannot be read"),
        ([{**BACKEND, "secret": {"file": "empty"}}], r"declared\[0\]\.secret: is empty"),
        ([{**BACKEND, "secret": {"file": "two"}}], r"declared\[0\]\.secret: .*no spaces or line breaks"),
        ([{**BACKEND, "previous_secret": "a b"}], r"declared\[0\]\.previous_secret: .*no spaces or line breaks"),
        (
            [WEB, {**BACKEND, "secret_flie": "s"}],
            r"declared\[1\]\.secret_flie: unknown option; did you mean .*\.secret\?",
        ),
    ],
)
async def test_a_wrong_declaration_stops_the_start(tmp_path: Path, tables: list[dict[str, Any]], message: str) -> None:
    (tmp_path / "backend.secret").write_text("secret\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "two").write_text("new\nold\n")
    with pytest.raises(ConfigError, match=rf"plugins\.keys\.{message}"):
        declared(tmp_path, *tables)


async def test_a_declared_secret_is_rotated_by_declaring_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {**BACKEND, "secret": "first"}
    for table, secrets in (
        (plain, ["first"]),
        ({**plain, "secret": "second", "previous_secret": "first"}, ["second", "first"]),
        ({**plain, "secret": "second"}, ["second"]),
    ):
        async with sqlite_daemon(tmp_path) as daemon:
            await declared(tmp_path, table).startup(daemon)
            key = (await read_keys(daemon.store.begin(now())))[BACKEND["id"].lower()]
            assert key.secrets(now()) == secrets
            assert secrets[0] not in await KeyCommands(daemon, capsys)("list", "--json")
