"""The configuration: `--set`, secrets kept elsewhere, `config show`, and the faults that stop the start."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.daemon import Key, Shop, run_ingestd

SECRET = "hunter2-which-nobody-may-see"
SERVER = Key("6f9619ff-8b86-d011-b42d-00cf4fc964ff", SECRET)
EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}}


def why(done: subprocess.CompletedProcess[str]) -> str:
    """The last line on standard error of a command that a faulty configuration has stopped."""
    assert done.returncode == 78
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr + done.stdout
    return done.stderr.splitlines()[-1]


def declared(secret: str, *, previous: str = "") -> dict[str, str]:
    """The tables of a shop that declares a server key."""
    more = f"previous_secret = {previous}\n" if previous else ""
    return {
        "[plugins.keys.declared]": f'id = "{SERVER.id}"\nkind = "server"\ntenant = "shop"\nsecret = {secret}\n{more}'
        'grants = { CRM = ["ADMIN"] }'
    }


def test_an_option_of_the_file_is_overridden_and_the_effective_value_is_shown(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"http": 'max_body = "3MiB"'})
    text = shop.command("config", "show", "--set", "http.max_body=2MiB", "--set", 'plugins.session.idle="1h"')
    lines = text.splitlines()
    assert 'max_body = "2MiB"  # --set' in lines
    assert 'listen = "127.0.0.1:0"  # file' in lines
    assert 'idle = "1h"  # --set' in lines
    assert "max_waiting = 10000" in lines
    shown = json.loads(shop.command("config", "show", "--json", "--set", "http.max_body=2MiB"))
    assert shown["http"]["max_body"] == "2MiB"
    assert shown["sinks"]["archive"]["path"] == str(shop.archive)
    assert shown["journal"]["url"] is None


def test_a_daemon_runs_with_the_output_of_config_show(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    text = shop.command("config", "show", "--set", "http.max_body=1kB")
    shop.config.write_text(text)
    with shop.serve() as daemon:
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
        assert daemon.post("/track", {**EVENT, "data": {"x": "y" * 1000}}, shop.public.id).status == 413
    assert tomllib.loads(shop.command("config", "show")) == tomllib.loads(text)


def test_set_works_without_the_file_naming_the_section(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    sets = ["--set", "sinks.second.type=jsonl", "--set", "sinks.second.path=second.jsonl"]
    assert re.search(r"^ +second +ok", shop.command("check", *sets), re.MULTILINE)
    assert shop.command("keys", "list", *sets) == shop.command("keys", "list", "--set=journal.url=sqlite:ingestd.db")


@pytest.mark.parametrize(
    "reference", ['{ file = "erp.secret" }', '{ env = "ERP_SECRET" }', '{ credential = "erp" }', f'"{SECRET}"']
)
def test_a_declared_secret_may_be_kept_elsewhere_and_is_shown_nowhere(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path, declared(reference, previous='"the-one-before"'))
    (tmp_path / "erp.secret").write_text(f"{SECRET}\n")
    (tmp_path / "erp").write_text(f"{SECRET}\n")
    monkeypatch.setenv("ERP_SECRET", SECRET)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with shop.serve() as daemon:
        assert daemon.post_signed(EVENT, SERVER).status == 200
        assert daemon.post_signed(EVENT, Key(SERVER.id, "the-one-before")).status == 200
        assert daemon.post_signed(EVENT, Key(SERVER.id, reference)).status == 401
        printed = [shop.command("config", "show"), shop.command("config", "show", "--json"), shop.command("check")]
        printed += daemon.log
    for text in printed:
        assert SECRET not in text
        assert "the-one-before" not in text


def test_a_store_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path)
    monkeypatch.setenv("INGESTD_STORE", "sqlite:ingestd.db")
    shop.config.write_text(shop.config.read_text().replace('"sqlite:ingestd.db"', '{ env = "INGESTD_STORE" }'))
    assert shop.public.id in shop.command("keys", "list")
    assert 'url = { env = "INGESTD_STORE" }  # file' in shop.command("config", "show")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["http.max_bdy=2MiB"], "--set http.max_bdy: unknown option; did you mean http.max_body?"),
        (["http.max_body=2 MB!"], "--set http.max_body: expected a number with a unit"),
        (["http.max_waiting=-1"], "--set http.max_waiting: expected a whole number >= 1, got -1"),
        (["http.max_waiting=0"], "--set http.max_waiting: expected a whole number >= 1, got 0"),
        (["http.body_timeout=0s"], "--set http.body_timeout: expected more than 0, got '0s'"),
        (["logs.access_sample=2"], "--set logs.access_sample: expected a number <= 1.0, got 2"),
        (['http.trusted_proxies=["proxy"]'], "--set http.trusted_proxies[0]: expected an IP address or a network"),
        (["plugins.sesion.idle=1h"], "plugins.sesion: no such plugin; did you mean plugins.session?"),
        (["plugins.session.idle=0s"], "--set plugins.session.idle: expected more than 0"),
        (["sinks.archive.keep=0"], "--set sinks.archive.keep: expected a whole number >= 1, got 0"),
        (["sinks.archive.pth=x"], "--set sinks.archive.pth: unknown option; did you mean sinks.archive.path?"),
        (["schemas.directory=gone"], "--set schemas.directory: "),
        ([f"store.url={SECRET}"], "--set store.url: expected a URL"),
        ([f"store.url=sqlite://user:{SECRET}@host/x.db"], "--set store.url: 'sqlite://user:***@host/x.db': expected"),
        ([f"store.url=redisx://user:{SECRET}@host/x.db"], "--set store.url: there is no plugin 'redisx'"),
        (["store.url={ env = 'NO_SUCH_VARIABLE' }"], "the environment variable NO_SUCH_VARIABLE is not set"),
        ([f"plugins.keys.declared={SECRET}"], "--set plugins.keys.declared: expected an array in brackets"),
        (["http.max_body"], "--set http.max_body: expected OPTION=VALUE, such as http.max_body=2MiB"),
    ],
)
def test_an_impossible_setting_stops_every_command(shop: Shop, arguments: list[str], reason: str) -> None:
    sets = [part for argument in arguments for part in ("--set", argument)]
    assert reason in why(run_ingestd("serve", *sets, config=shop.config))
    assert reason in why(run_ingestd("check", *sets, config=shop.config))


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({"http": "max_waiting = 0"}, "http.max_waiting: expected a whole number >= 1, got 0"),
        ({"journal": 'keep_for = "0d"'}, "journal.keep_for: expected more than 0, got '0d'"),
        ({"schemas": 'directory = "gone"'}, "schemas.directory: "),
        (declared('{ file = "gone" }'), "plugins.keys.declared[0].secret: the file "),
        (declared(f'["{SECRET}"]'), "plugins.keys.declared[0].secret: expected text, { file"),
        (declared(f'{{ text = "{SECRET}" }}'), "plugins.keys.declared[0].secret: expected text, { file"),
        (declared(f'"{SECRET}"', previous='""'), "plugins.keys.declared[0].previous_secret: is empty"),
        (declared('"with a space"'), "plugins.keys.declared[0].secret: a key's secret has no spaces"),
        ({"plugins.keys": f'declared = ["{SECRET}"]'}, "plugins.keys.declared[0]: expected a table"),
    ],
)
def test_a_fault_in_the_file_stops_the_start_and_names_file_and_option(
    tmp_path: Path, tables: dict[str, str], reason: str
) -> None:
    shop = Shop(tmp_path, tables)
    for command in ("serve", "check"):
        assert f"{shop.config}: {reason}" in why(run_ingestd(command, config=shop.config))


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param(
            '[journal]\nkeep_for = 90\n[http]\nlisten = 8080\n[plugins.session]\nidel = "30m"\n'
            '[sinks.a]\ntype = "jsonl"\n',
            ["journal.keep_for", "plugins.session.idel", "sinks.a.path", "http.listen"],
            id="in all sections",
        ),
        pytest.param(
            '[store]\nurl = "sqlite:a.db"\n[sinks.a]\ntype = "jsonl"\n'
            '[sinks.b]\ntype = "webhook"\nurl = "crm.example/in"\n',
            ["sinks.b.url", "sinks.a.path"],
            id="in sinks only",
        ),
    ],
)
def test_a_start_names_all_faults_of_the_file(text: str, faults: list[str], tmp_path: Path) -> None:
    config = tmp_path / "faulty.toml"
    config.write_text(text)
    done = run_ingestd("serve", config=config)
    assert done.returncode == 78
    lines = done.stderr.splitlines()
    assert [next(fault for fault in faults if f": {fault}: " in line) for line in lines] == faults


def test_an_argument_is_never_taken_for_an_abbreviation(shop: Shop) -> None:
    done = run_ingestd("keys", "list", "--conf", str(shop.config), config=shop.config)
    assert done.returncode == 2
    assert "--conf" in done.stderr
