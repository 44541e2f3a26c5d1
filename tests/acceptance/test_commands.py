"""The commands with a running daemon and without one: their effects, output and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Key, Shop, run_ingestd
from tests.support.terminal import HOSTILE, shown_on_terminal

EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}}
SOON = 2.0
"""The seconds until a change of keys takes effect."""

GIFT_WRAPPED = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:shop:schema:gift_wrapped",
    "title": "Gift Wrapped",
    "type": "object",
    "required": ["paper"],
    "properties": {"paper": {"type": "string"}},
}


@pytest.fixture(params=["beside a daemon", "without a daemon"])
def keys_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """A shop for key commands, with or without a running daemon."""
    if request.param == "beside a daemon":
        shop: Shop = request.getfixturevalue("shop")
        request.getfixturevalue("daemon")
        return shop
    return Shop(tmp_path)


def why(done: subprocess.CompletedProcess[str]) -> str:
    """The last line on standard error, which is the reason for a failure."""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def signed(daemon: Daemon, key: Key) -> int:
    return daemon.post_signed(EVENT, key).status


def public(daemon: Daemon, key: Key) -> int:
    return daemon.post("/track", EVENT, key.id).status


def listed(shop: Shop) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in shop.command("keys", "list", "--json").splitlines()]
    return {row["id"]: row for row in rows}


def rotated(shop: Shop, key: Key, *arguments: str) -> Key:
    return Key(key.id, json.loads(shop.command("keys", "rotate", key.id, "--json", *arguments))["secret"])


def within(seconds: float, condition: Callable[[], bool]) -> None:
    wait_until(condition, patience=seconds)


# Keys


def test_keys_made_rotated_and_revoked_beside_a_daemon_take_effect_soon(shop: Shop, daemon: Daemon) -> None:
    opened, signing = shop.create_key("public", "shop"), shop.create_key("server", "shop")
    within(SOON, lambda: public(daemon, opened) == 200)
    within(SOON, lambda: signed(daemon, signing) == 200)

    renewed = rotated(shop, signing)
    within(SOON, lambda: signed(daemon, renewed) == 200)
    assert signed(daemon, signing) == 200  # its grace time is a day
    last = rotated(shop, signing, "--grace", "0s")
    within(SOON, lambda: signed(daemon, last) == 200)
    assert signed(daemon, renewed) == signed(daemon, signing) == 401

    for key, status in ((opened, public), (last, signed)):
        shop.command("keys", "revoke", key.id)
        within(SOON, lambda key=key, status=status: status(daemon, key) == 401)  # type: ignore[misc]  # no type for a default


def test_a_rotated_secret_stays_valid_for_its_grace_time_only(shop: Shop, daemon: Daemon) -> None:
    key = shop.create_key("server", "shop")
    within(SOON, lambda: signed(daemon, key) == 200)
    renewed = rotated(shop, key, "--grace", "1s")
    within(SOON, lambda: signed(daemon, renewed) == 200)
    within(1 + SOON, lambda: signed(daemon, key) == 401)
    assert signed(daemon, renewed) == 200


def test_keys_made_without_a_daemon_are_there_when_it_starts(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    gone, renewed = shop.create_key("public", "shop"), rotated(shop, shop.server, "--grace", "0s")
    shop.command("keys", "revoke", gone.id)
    with shop.serve() as daemon:
        assert public(daemon, shop.public) == signed(daemon, renewed) == 200
        assert public(daemon, gone) == signed(daemon, shop.server) == 401


def test_a_key_has_the_grants_it_was_given(shop: Shop, daemon: Daemon) -> None:
    key = shop.create_key("server", "shop", grants=False)
    within(SOON, lambda: signed(daemon, key) == 403)
    assert listed(shop)[key.id]["grants"] == {}
    assert listed(shop)[shop.server.id]["grants"] == {"CRM": ["ADMIN"]}


def test_a_key_is_listed_without_its_secret(shop: Shop, daemon: Daemon) -> None:
    shown = shop.command("keys", "create", "--kind", "server", "--tenant", "t-1", "--label", "back end")
    match = re.search(r"^id: +(\S+)\nsecret: +(\S+)", shown)
    assert match is not None
    key_id, secret = match.groups()
    row = listed(shop)[key_id]
    assert (row["kind"], row["tenant"], row["label"], row["revokedAt"]) == ("server", "t-1", "back end", None)
    table = shop.command("keys", "list")
    assert re.search(rf"^{key_id} .*t-1 .*live.*back end$", table, re.MULTILINE)

    again = rotated(shop, Key(key_id), "--grace", "1h").secret
    assert listed(shop)[key_id]["previousUntil"] is not None
    assert shop.command("keys", "revoke", key_id) == f"revoked {key_id}\n"
    assert listed(shop)[key_id]["revokedAt"] is not None
    for each in (table, shop.command("keys", "list"), shop.command("keys", "list", "--json")):
        assert secret not in each
        assert again not in each
        assert shop.server.secret not in each
    done = run_ingestd("keys", "rotate", key_id, config=shop.config)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this key is revoked; create a new one" in why(done)


def test_a_public_key_cannot_be_rotated_and_the_refusal_names_the_alternative(keys_shop: Shop) -> None:
    done = run_ingestd("keys", "rotate", keys_shop.public.id, config=keys_shop.config)
    assert (done.returncode, done.stdout) == (1, "")
    assert "create a new one, put it where the old one is used, and then revoke the old one" in why(done)
    assert keys_shop.public.id not in done.stderr
    assert listed(keys_shop)[keys_shop.public.id]["revokedAt"] is None


def test_an_unknown_key_is_refused_without_showing_a_similar_key_whole(shop: Shop) -> None:
    near = shop.public.id[:-1] + ("x" if shop.public.id[-1] != "x" else "y")
    done = run_ingestd("keys", "revoke", near, config=shop.config)
    assert done.returncode == 1
    assert "there is no such key; did you mean pk_" in why(done)
    assert shop.public.id not in done.stderr


def test_neither_keys_nor_secrets_are_ever_in_the_log(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    keys = [shop.public, shop.server]
    with shop.serve() as daemon:
        keys += [shop.create_key("public", "shop"), shop.create_key("server", "shop")]
        keys.append(rotated(shop, shop.server))
        within(SOON, lambda: public(daemon, keys[2]) == 200)
        within(SOON, lambda: signed(daemon, keys[4]) == 200)
        for key in keys:
            # Right uses, wrong uses, and a secret in the place of the key.
            public(daemon, key)
            signed(daemon, key)
            daemon.post("/track", EVENT, key.secret or key.id[:-1])
            daemon.post("/customer-events", b"{", key.id, x_signature="00")
            daemon.request("GET", f"/api/v1/analytics/track?key={key.id}")
            daemon.request("POST", f"/{key.id}", b"{}", {"Authorization": f"Basic {key.id}"})
        shop.command("keys", "revoke", keys[2].id)
        within(SOON, lambda: public(daemon, keys[2]) == 401)
    log = "\n".join(daemon.log)
    assert "ready: " in log
    for key in keys:
        assert key.id not in log
        assert not key.secret or key.secret not in log


# Events and plugins


def test_export_by_type_and_time(shop: Shop, daemon: Daemon) -> None:
    for body in ({**EVENT, "messageId": "x-1"}, {**EVENT, "messageId": "x-2"}):
        assert daemon.post("/track", body, shop.public.id).status == 200
        time.sleep(0.002)  # so that their times of receipt differ
    assert daemon.post("/identify/public", {"anonymousId": "exported"}, shop.public.id).status == 200
    everything = shop.exported()
    assert {record["type"] for record in everything} == {"event", "identify"}
    for kind in ("event", "identify"):
        chosen = shop.exported("--type", kind)
        assert chosen == [record for record in everything if record["type"] == kind]
    (second,) = [record for record in everything if record["messageId"] == "x-2"]
    since = [record for record in everything if record["receivedAt"] >= second["receivedAt"]]
    assert since[0] == second
    assert len(since) < len(everything)
    assert shop.exported("--since", second["receivedAt"]) == since
    assert shop.exported("--since", second["receivedAt"].replace("Z", "+00:00"), "--type", "event") == [
        record for record in since if record["type"] == "event"
    ]
    assert shop.exported("--since", "2h") == everything
    assert shop.exported("--since", "0s") == []


def test_export_steers_no_terminal_and_writes_stored_text_to_a_pipe(shop: Shop, daemon: Daemon) -> None:
    assert daemon.post("/track", {**EVENT, "data": {text: text for text in HOSTILE}}, shop.public.id).status == 200
    stored = shop.exported()
    shown = shown_on_terminal("events", "export", config=shop.config).removesuffix("\r\n").split("\r\n")
    assert all(line.isprintable() for line in shown)
    assert [json.loads(line) for line in shown] == stored
    assert HOSTILE[1] in shop.command("events", "export")


@pytest.mark.parametrize("wrong", ["yesterday", "-2h"])
def test_export_refuses_invalid_times(wrong: str, shop: Shop) -> None:
    done = run_ingestd("events", "export", f"--since={wrong}", config=shop.config)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--since: expected an RFC 3339 time or an age such as 2h" in why(done)


def test_export_ends_quietly_when_its_reader_has_ended(shop: Shop, daemon: Daemon) -> None:
    big = {**EVENT, "data": {"text": "x" * 100_000}}
    for _ in range(5):
        assert daemon.post("/track", big, shop.public.id).status == 200
    line = f"set -o pipefail; ingestd events export --config '{shop.config}' | head -c 1"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


def test_plugins_are_listed_with_their_origin(shop: Shop) -> None:
    rows = [json.loads(line) for line in shop.command("plugins", "list", "--json").splitlines()]
    for row in rows:
        assert row.keys() == {"name", "distribution", "version", "source", "file", "sinks", "stores", "hooks"}
    plugins = {row["name"]: row for row in rows}
    assert {"keys", "hmac_auth", "identity", "session", "sqlite", "jsonl"} <= plugins.keys()
    assert plugins["session"]["hooks"] == ["event_dropped", "forget_person", "resolve_session", "take_over"]
    assert plugins["session"]["distribution"] == "ingestd"
    heads, *lines = shop.command("plugins", "list").splitlines()
    assert heads.split() == ["NAME", "DISTRIBUTION", "SINKS", "STORES", "HOOKS", "FILE"]
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]


# Configurations, and refusals to start


SECTIONS = {
    "http": 'listen = "127.0.0.1:0"',
    "ops": 'listen = "127.0.0.1:0"',
    "store": 'url = "sqlite:ingestd.db"',
}


def write_config(folder: Path, **sections: str) -> Path:
    """Writes a configuration with replaced sections. `__` in a keyword stands for a dot."""
    named = {**SECTIONS, **{name.replace("__", "."): lines for name, lines in sections.items()}}
    config = folder / "ingestd.toml"
    config.write_text("".join(f"[{name}]\n{lines}\n" for name, lines in named.items()))
    return config


@pytest.mark.parametrize(
    ("sections", "reasons"),
    [
        ({"http": 'lisen = "127.0.0.1:0"'}, ["http.lisen: unknown option; did you mean http.listen?"]),
        ({"htpp": ""}, ["htpp: unknown option; did you mean http?"]),
        ({"http": 'listen = "8080"'}, ["http.listen: expected an address and a port", "got '8080'"]),
        ({"plugins__session": 'idel = "30m"'}, ["plugins.session.idel", "did you mean plugins.session.idle?"]),
        ({"plugins__sesion": 'idle = "30m"'}, ["plugins.sesion: no such plugin; did you mean plugins.session?"]),
        ({"plugins": 'enabled = ["keys", "sesion"]'}, ["plugins.enabled", "'sesion'", "did you mean session?"]),
        ({"sinks__crm": 'type = "jsnol"\npath = "x"'}, ["sinks.crm.type", "'jsnol'", "did you mean jsonl?"]),
        ({"sinks__crm": 'path = "x"'}, ["sinks.crm.type: must be given; expected clickhouse, ", "jsonl"]),
        ({"store": 'url = "sqlite://ingestd.db"'}, ["store.url", "sqlite:///absolute/path.db"]),
        ({"store": 'url = "sqlit:ingestd.db"'}, ["store.url", "'sqlit'", "did you mean sqlite?"]),
    ],
)
def test_a_wrong_configuration_is_refused_with_file_option_and_suggestion(
    sections: dict[str, str], reasons: list[str], tmp_path: Path
) -> None:
    config = write_config(tmp_path, **sections)
    done = run_ingestd("serve", config=config)
    assert done.returncode == 78
    line = why(done)
    for reason in [*reasons, str(config)]:
        assert reason in line


def test_a_missing_directory_of_schemas_is_named(tmp_path: Path) -> None:
    done = run_ingestd("serve", config=write_config(tmp_path, schemas='directory = "nowhere"'))
    assert done.returncode == 78
    assert f"{tmp_path / 'nowhere'}: the directory of schemas does not exist" in why(done)


def test_a_shop_may_add_an_event_key(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "gift_wrapped.json").write_text(json.dumps(GIFT_WRAPPED))
    shop = Shop(tmp_path, {"schemas": 'directory = "schemas"'})
    assert "34 event keys" in shop.command("check")
    with shop.serve() as daemon:
        event = {"key": "Gift Wrapped", "anonymousId": "visitor", "data": {"paper": "red"}}
        assert daemon.post("/track", event, shop.public.id).status == 200
        assert daemon.post_signed(event, shop.server).status == 200
        refused = daemon.post("/track", {**event, "data": {}}, shop.public.id)
        assert refused.status == 400
        assert [error["pointer"] for error in refused.json()["errors"]] == ["/data/paper"]
        assert daemon.metric('ingestd_events_total{endpoint="track",key="Gift Wrapped",outcome="accepted"}') == 1
    assert [record["key"] for record in shop.exported()] == ["Gift Wrapped"] * 2


def test_a_missing_configuration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing.toml"
    done = run_ingestd("serve", config=missing)
    assert done.returncode == 78
    assert f"{missing}: cannot be read" in why(done)
    monkeypatch.setenv("INGESTD_CONFIG", str(missing))
    done = run_ingestd("check", folder=tmp_path)
    assert done.returncode == 78
    assert f"{missing}: cannot be read" in why(done)
    if not Path("/etc/ingestd/ingestd.toml").exists():
        monkeypatch.delenv("INGESTD_CONFIG")
        done = run_ingestd("keys", "list", folder=tmp_path)
        assert done.returncode == 78
        assert "name one with --config or INGESTD_CONFIG" in why(done)


def test_the_configuration_is_found_by_environment_or_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    monkeypatch.delenv("INGESTD_CONFIG", raising=False)
    assert run_ingestd("keys", "list", folder=tmp_path).returncode == 0
    monkeypatch.setenv("INGESTD_CONFIG", str(config))
    assert run_ingestd("keys", "list", folder=tmp_path.parent).returncode == 0
    # Relative paths are relative to the configuration, wherever the command is run.
    assert (tmp_path / "ingestd.db").exists()
    assert not (tmp_path.parent / "ingestd.db").exists()


def test_help_and_version_need_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGESTD_CONFIG", str(tmp_path / "missing.toml"))
    version = run_ingestd("--version", folder=tmp_path)
    assert (version.returncode, version.stderr) == (0, "")
    assert re.fullmatch(r"ingestd \d+\.\S+\n", version.stdout)
    for arguments in (["--help"], ["keys", "create", "-h"]):
        done = run_ingestd(*arguments, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: ingestd")
    nothing = run_ingestd(folder=tmp_path)
    assert nothing.returncode == 2
    assert "COMMAND" in why(nothing)


@pytest.mark.parametrize("maker", ["a command", "the daemon"])
def test_only_the_owner_may_read_the_database(maker: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.database.unlink()
    if maker == "a command":
        shop.command("keys", "list")
        assert shop.database.stat().st_mode & 0o777 == 0o600
    with shop.serve() as daemon:
        assert public(daemon, shop.public) == 401  # a new database, without the shop's keys
        files = [*shop.folder.glob("ingestd.db*")]
        assert {file.name for file in files} >= {"ingestd.db", "ingestd.db-wal"}
        for file in files:
            assert file.stat().st_mode & 0o777 == 0o600, file
