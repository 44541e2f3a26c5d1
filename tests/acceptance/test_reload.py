"""SIGHUP and `ingestd reload`: a new configuration takes effect as a whole, or nothing changes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestd.daemon.run_file import RunFile, RunState
from tests.support.clients import Load, wait_until
from tests.support.daemon import Daemon, Key, Shop, run_ingestd, sign
from tests.support.distribution import write_distribution
from tests.support.forked import short_times
from tests.support.init import Init
from tests.support.rawhttp import Client, event, head, post
from tests.support.redis_shop import redis_shop
from tests.support.told_sink import Told

EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}}
SERVER = Key("6f9619ff-8b86-d011-b42d-00cf4fc964ff", "a-secret-of-the-erp")
DECLARED = (
    f'[[plugins.keys.declared]]\nid = "{SERVER.id}"\nkind = "server"\ntenant = "shop"\nsecret = {{ file = "erp" }}\n'
    'grants = { CRM = ["ADMIN"] }\n'
    '[[plugins.keys.declared]]\nid = "a-public-key-of-the-shop"\nkind = "public"\ntenant = "shop"\n'
)
NAMED = {"Host": "ingestd.example:9464"}
GIFT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:shop:schema:gift",
    "title": "Gift Wrapped",
    "type": "object",
    "properties": {"paper": {"type": "string"}},
}


class Site:
    """A shop with a daemon, and methods that change and reload the configuration."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.first = shop.config.read_text()

    def write(self, *lines: str, **sections: str) -> None:
        """Writes the configuration with more options in its sections, and with more lines at the end."""
        text = self.first
        for name, options in sections.items():
            header = f"[{name}]\n"
            text = text.replace(header, f"{header}{options}\n") if header in text else f"{text}{header}{options}\n"
        self.shop.config.write_text("\n".join([text, *lines]))

    def reload(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_ingestd("reload", "--directory", str(self.shop.folder), *arguments)

    def reloaded(self) -> int:
        """Reloads, which must succeed, and returns the current generation."""
        state = self._signal()
        assert (state.refused, state.code) == (None, 0)
        return state.generation

    def refused(self) -> str:
        """Reloads, which must be refused, and returns the reason."""
        state = self._signal()
        assert state.refused is not None
        assert state.code == 78, state.refused
        return state.refused

    def _signal(self) -> RunState:
        """Sends SIGHUP and waits for the end of the reload. The command would take longer."""
        file = RunFile(self.shop.folder)
        before = file.read()
        assert before is not None
        os.kill(before.pid, signal.SIGHUP)

        def ended() -> bool:
            state = file.read()
            return state is not None and state.ended > before.begun

        wait_until(ended)
        after = file.read()
        assert after is not None
        return after


@contextmanager
def serving(shop: Shop) -> Iterator[Daemon]:
    with Daemon(shop.config, environment={"RUNTIME_DIRECTORY": str(shop.folder)}) as daemon:
        yield daemon
        assert daemon.terminate() == 0, "\n".join(daemon.log)
    assert not (shop.folder / "ingestd.json").exists()


def generation(daemon: Daemon) -> tuple[float, float]:
    """The current generation, and whether the last reload was successful."""
    return daemon.metric("ingestd_config_generation"), daemon.metric("ingestd_config_last_reload_successful")


def signed(key: Key, body: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    raw = json.dumps(body).encode()
    return raw, {"Authorization": f"Bearer {key.id}", "x-signature": sign(key.secret, raw)}


def test_everything_that_can_change_is_in_force_when_the_command_returns(tmp_path: Path, http_server: str) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    site = Site(shop)
    (tmp_path / "schemas").mkdir()
    (tmp_path / "erp").write_text(SERVER.secret)
    gift = {**EVENT, "key": "Gift Wrapped"}
    with serving(shop) as daemon:
        assert generation(daemon) == (1, 1)
        assert daemon.post("/track", gift, shop.public.id).status == 404
        assert daemon.post_signed(EVENT, SERVER).status == 401
        (tmp_path / "schemas" / "gift.json").write_text(json.dumps(GIFT))
        site.write(
            DECLARED,
            http='max_body = "2kB"\nmax_header_size = "1KiB"\nallowed_origins = ["https://shop.example"]',
            logs="access_sample = 1.0",
            ops='allowed_hosts = ["ingestd.example"]',
            schemas='directory = "schemas"',
            **{
                "plugins.session": 'idle = "1ms"',
                "plugins.rate_limit": 'per_key = "100/h"',
                "sinks.second": 'type = "jsonl"\npath = "second.jsonl"\nbatch = { max_wait = "0s" }',
            },
        )  # fmt: skip
        assert daemon.request("GET", "/livez", headers=NAMED, port=daemon.ops_port).status == 421
        done = site.reload()
        assert done.returncode == 0, done.stderr
        assert daemon.request("GET", "/livez", headers=NAMED, port=daemon.ops_port).status == 200
        assert done.stdout == f"generation 2 of the configuration is in force (process {daemon.pid})\n"
        assert generation(daemon) == (2, 1)
        assert daemon.post("/track", gift, shop.public.id, origin="https://shop.example").headers[
            "access-control-allow-origin"
        ] == "https://shop.example"  # fmt: skip
        assert daemon.post("/track", {**gift, "data": {"paper": 1}}, shop.public.id).status == 400
        assert daemon.post_signed(EVENT, SERVER).status == 200
        assert daemon.post("/track", EVENT, "a-public-key-of-the-shop").status == 200
        first = daemon.post("/track", EVENT, shop.public.id).json()["session"]["sessionId"]
        time.sleep(0.01)  # longer than a session may be idle
        assert daemon.post("/track", EVENT, shop.public.id).json()["session"]["sessionId"] != first
        assert daemon.post("/track", {**EVENT, "data": {"x": "y" * 2000}}, shop.public.id).status == 413
        assert daemon.post("/track", EVENT, shop.public.id, long="y" * 1100).status == 431
        assert {daemon.post("/track", EVENT, shop.public.id).status for _ in range(101)} == {200, 429}
        wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="second"}') > 3)
        daemon.read_log()
        (line,) = [line for line in daemon.log if "generation 2" in line]
        for what in (
            "http.max_body", "http.allowed_origins", "ops.allowed_hosts", "logs.access_sample", "schemas.directory",
            "plugins.keys.declared", "plugins.session.idle", "plugins.rate_limit.per_key", "sinks.second added",
            "schemas (34 event keys)",
        ):  # fmt: skip
            assert what in line
        assert SERVER.secret not in "\n".join(daemon.log)
        assert any("POST track 200" in line for line in daemon.log)
        shop.config.write_text(site.first)
        assert site.reloaded() == 3
        assert daemon.post("/track", gift, shop.public.id).status == 404
        assert daemon.post_signed(EVENT, SERVER).status == 401
        assert daemon.post("/track", {**EVENT, "data": {"x": "y" * 2000}}, shop.public.id).status == 200
        assert daemon.post("/track", EVENT, shop.public.id).headers["access-control-allow-origin"] == "*"
        assert daemon.metric('ingestd_sink_delivered_total{sink="second"}') == 0  # the sink was removed
    exported = {record["key"] for record in shop.stored()}
    assert exported == {"Page View", "Gift Wrapped"}
    assert shop.archived() == shop.stored()


WRONG = {
    "no TOML": ("[sinks", "not TOML"),
    "an unknown option": ("[logs.of]\nlevel = 1", "logs.of: unknown option"),
    "a schema that is none": ('[schemas]\ndirectory = "broken"', "not JSON"),
    "a secret that is not there": (
        DECLARED.replace('file = "erp"', 'env = "NONE_SUCH"'),
        "the environment variable NONE_SUCH is not set",
    ),
    "a filter for no key": (
        '[sinks.b]\ntype = "jsonl"\npath = "b"\nfilter = { keys = ["Pageview"] }', 'did you mean Page View',
    ),
    "a sink of no kind": ('[sinks.b]\ntype = "jsonal"', "there is no plugin 'jsonal'"),
    "an option of a sink": ('[sinks.b]\ntype = "jsonl"\npath = "b.gz"', "remove .gz"),
    "a rate without its limit": ("[plugins.rate_limit]\nper_key_burst = 5", "per_key_burst: has no meaning"),
}  # fmt: skip


def test_a_wrong_file_changes_nothing_and_is_refused_with_the_reason(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.json").write_text("{")
    with serving(shop) as daemon:
        for name, (lines, why) in WRONG.items():
            # Each file also has a valid change, which must not take effect.
            shop.config.write_text(site.first.replace("[http]", '[http]\nmax_body = "1B"') + lines)
            reason = site.refused()
            assert why in reason, (name, reason)
            assert generation(daemon) == (1, 0), name
            assert daemon.post("/track", EVENT, shop.public.id).status == 200
            daemon.read_log()
            told = [line for line in daemon.log if "the configuration is not reloaded" in line]
            assert why in told[-1]
            assert "generation 1 stays in force" in told[-1]
            assert "Traceback" not in "\n".join(daemon.log)
        assert daemon.ops("/readyz").status == 200
        done = site.reload()
        assert (done.returncode, done.stdout) == (78, "")
        assert f"refused, generation 1 stays in force: {reason}" in done.stderr
        shop.config.write_text(site.first)
        assert site.reloaded() == 2
        assert generation(daemon) == (2, 1)
    assert len(shop.archived()) == len(WRONG)


FIXED = {
    "http.listen": ("http", 'listen = "127.0.0.2:0"'),
    "http.server": ("http", 'server = "tornado"'),
    "ops.listen": ("ops", 'listen = "127.0.0.2:0"'),
    "store.url": ("store", 'url = "sqlite:other.db"'),
    "journal.url": ("journal", 'url = "sqlite:journal.db"'),
    "plugins.enabled": ("plugins", 'enabled = ["keys", "hmac_auth", "identity", "session", "sqlite", "jsonl"]'),
    "plugins.also": ("plugins", 'also = ["rate_limit"]'),
    "plugins.sqlite.cache_size": ("plugins.sqlite", 'cache_size = "5MiB"'),
    "plugins.attribution.model": ("plugins.attribution", 'model = "linear"'),
    "ids.unusable": ("ids", "unusable = []"),
}


def test_an_option_that_needs_a_restart_refuses_the_whole_reload_and_is_named(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    with serving(shop) as daemon:
        for path, (section, line) in FIXED.items():
            tables = {"logs": "access_sample = 1.0", section: line}
            text = site.first
            for name, lines in tables.items():  # in place of the option's present line
                option = lines.partition(" ")[0]
                body = re.search(rf"^\[{re.escape(name)}\]\n(?:[^\[].*\n)*", text, re.MULTILINE)
                old = body[0] if body is not None else ""
                new = re.sub(rf"^{option} = .*\n", "", old or f"[{name}]\n", flags=re.MULTILINE) + f"{lines}\n"
                text = text.replace(old, new) if old else text + new
            shop.config.write_text(text)
            reason = site.refused()
            assert f"ingestd.toml: {path}: a reload cannot change it" in reason
            assert "restart the daemon" in reason
        assert generation(daemon) == (1, 0)
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
        daemon.read_log()
        assert not any("POST track 200" in line for line in daemon.log)


def test_several_such_options_are_named_at_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    with serving(shop):
        site.write(http='server = "tornado"', journal='url = "sqlite:journal.db"')
        assert "ingestd.toml: http.server, journal.url: a reload cannot change it" in site.refused()


def test_a_request_is_answered_by_the_configuration_at_its_start(tmp_path: Path, http_server: str) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    site = Site(shop)
    body = event({"x": "y" * 5000})
    with serving(shop) as daemon, Client(daemon.port) as client:
        client.send(post(shop.public.id, body, "Origin: https://other.example")[:-5])
        wait_until(lambda: daemon.metric("ingestd_http_buffered_bytes") > 5000)
        site.write(http='max_body = "1kB"\nallowed_origins = ["https://shop.example"]')
        assert site.reloaded() == 2
        client.send(body[-5:])
        reply = client.reply()
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "*")
        client.send(post(shop.public.id, body))  # the next one on the same connection
        reply = client.reply()
        assert (reply.status, "access-control-allow-origin" in reply.headers) == (413, False)
    assert len(shop.archived()) == 1


def test_reloads_under_load_lose_no_request_and_sinks_continue_at_their_cursors(
    tmp_path: Path, http_server: str
) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    site = Site(shop)
    with serving(shop) as daemon, Load(daemon.port, shop.public.id) as load:

        def come_to(count: int) -> None:
            wait_until(lambda: len(load.answered) >= count)

        for number in range(2, 9):
            before = len(load.answered)
            come_to(before + 200)
            batch = f"batch = {{ max_events = {number} }}"
            text = site.first.replace('path = "archive.jsonl"', f'path = "{number}.jsonl"\n{batch}')
            shop.config.write_text(text + f'[sinks.also-{number}]\ntype = "jsonl"\npath = "also-{number}.jsonl"\n')
            assert site.reloaded() == number
        come_to(len(load.answered) + 200)
        load.stop()
        wait_until(lambda: daemon.metric('ingestd_consumer_pending{consumer="sink:archive"}') == 0)
        total = len(load.answered)
        # The counts include all earlier sinks with the name.
        wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == total)
        assert daemon.metric('ingestd_sink_retries_total{sink="archive"}') == 0
    assert {each.status for each in load.sent} == {200}
    files = [shop.archive, *(tmp_path / f"{number}.jsonl" for number in range(2, 9))]
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert [json.loads(line) for line in lines] == shop.stored()  # each record once and in order, over all files
    for number in range(2, 9):  # only the last sink has certainly received records
        file = tmp_path / f"also-{number}.jsonl"
        kept = Counter(file.read_text().splitlines() if file.exists() else ())
        assert kept or number < 8
        assert {*kept} <= {*lines}
        assert not kept or max(kept.values()) == 1


@pytest.mark.usefixtures("told_sink")
def test_an_unchanged_sink_continues_undisturbed_while_another_is_replaced(tmp_path: Path) -> None:
    same, other = Told(tmp_path, "same"), Told(tmp_path, "other")
    quick = 'batch = { max_wait = "0s" }'
    shop = Shop(tmp_path, {**same.options(quick), **other.options(quick)})
    site = Site(shop)
    with serving(shop) as daemon:
        same.tell(seconds=1)  # this write is still running when the other sink is replaced
        assert daemon.post("/track", {**EVENT, "data": {"number": 1}}, shop.public.id).status == 200
        wait_until(lambda: other.numbers() == [1])
        shop.config.write_text(site.first.replace('path = "other.jsonl"', 'path = "other.jsonl"\ntimeout = "9s"'))
        assert site.reloaded() == 2
        wait_until(lambda: same.numbers() == [1])
        assert daemon.metric('ingestd_sink_retries_total{sink="same"}') == 0
        same.tell()
        assert daemon.post("/track", {**EVENT, "data": {"number": 2}}, shop.public.id).status == 200
        wait_until(lambda: same.numbers() == other.numbers() == [1, 2])


@pytest.mark.usefixtures("told_sink")
def test_a_sink_that_hangs_is_replaced_after_the_shutdown_timeout(tmp_path: Path) -> None:
    crm = Told(tmp_path)
    shop = Shop(tmp_path, {"http": 'shutdown_timeout = "500ms"', **crm.options('batch = { max_wait = "0s" }')})
    site = Site(shop)
    crm.tell(hang=True)
    with serving(shop) as daemon:
        for number in range(5):
            assert daemon.post("/track", {**EVENT, "data": {"number": number}}, shop.public.id).status == 200
        wait_until(lambda: daemon.metric('ingestd_consumer_pending{consumer="sink:crm"}') == 5)
        shop.config.write_text(site.first.replace("crm.orders", "none.orders"))
        assert site.reloaded() == 2
        wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="crm"}') == 5)
        assert crm.numbers() == [*range(5)]


def test_declared_keys_are_known_at_once_and_removed_ones_are_unknown_at_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    (tmp_path / "erp").write_text(SERVER.secret)
    with serving(shop) as daemon:
        for number in range(2):
            site.write(DECLARED)
            site.reloaded()
            assert daemon.post_signed({**EVENT, "messageId": f"{number}"}, SERVER).status == 200
            (tmp_path / "erp").write_text(f"another-secret-{number}")  # the configuration file does not change
            site.reloaded()
            assert daemon.post_signed(EVENT, SERVER).status == 401
            (tmp_path / "erp").write_text(SERVER.secret)
            site.write()
            site.reloaded()
            assert daemon.post_signed(EVENT, SERVER).status == 401
            assert daemon.post("/track", EVENT, "a-public-key-of-the-shop").status == 401


def test_a_rate_limit_that_stays_keeps_its_counts(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    with serving(shop) as daemon:
        site.write(**{"plugins.rate_limit": 'per_key = "3/h"'})
        site.reloaded()
        assert [daemon.post("/track", EVENT, shop.public.id).status for _ in range(5)] == [200] * 3 + [429] * 2
        site.write(**{"plugins.rate_limit": 'per_key = "3/h"\nper_address = "9/h"'})
        site.reloaded()
        assert daemon.post("/track", EVENT, shop.public.id).status == 429
        assert daemon.metric('ingestd_rate_limit_refused_total{by="key"}') == 3
        site.write(**{"plugins.rate_limit": 'per_key = "4/h"'})
        site.reloaded()
        assert daemon.post("/track", EVENT, shop.public.id).status == 200


def test_simultaneous_signals_end_in_the_newest_configuration(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    with serving(shop) as daemon:
        for number in range(30):
            site.write(http=f'max_body = "{1000 + number}B"')
            os.kill(daemon.pid, signal.SIGHUP)
        site.write(http='max_body = "1B"')
        assert site.reloaded() >= 2
        assert daemon.post("/track", EVENT, shop.public.id).status == 413


def test_a_reload_while_the_daemon_stops_changes_nothing_and_drops_no_request(tmp_path: Path, http_server: str) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    site = Site(shop)
    body = event()
    with Daemon(shop.config, environment={"RUNTIME_DIRECTORY": str(tmp_path)}) as daemon, Client(daemon.port) as slow:
        slow.send(head(shop.public.id, f"Content-Length: {len(body)}"))
        wait_until(lambda: daemon.metric("ingestd_http_buffered_bytes") > 0)
        os.kill(daemon.pid, signal.SIGTERM)
        wait_until(lambda: daemon.ops("/readyz").status == 503)
        done = site.reload()
        assert done.returncode == 75
        assert done.stderr.rstrip().endswith("generation 1 stays in force: the daemon is shutting down")
        slow.send(body)
        assert slow.reply().status == 200
        assert daemon.wait() == 0


def test_the_command_line_overrides_the_file_at_a_reload_too(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    with Daemon(
        shop.config, arguments=("--set", "http.max_body=1kB"), environment={"RUNTIME_DIRECTORY": str(tmp_path)}
    ) as daemon:
        site.write(http='max_body = "1B"\nallowed_origins = ["https://shop.example"]')
        assert site.reloaded() == 2
        assert daemon.post("/track", EVENT, shop.public.id, origin="https://else.example").status == 403
        with Client(daemon.port) as client:
            client.send(post(shop.public.id, event()))
            assert client.reply().status == 200
        assert daemon.terminate() == 0


def test_a_reload_that_takes_too_long_is_reported(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    with Daemon(shop.config, environment={"RUNTIME_DIRECTORY": str(tmp_path)}) as daemon:
        os.kill(daemon.pid, signal.SIGSTOP)
        done = site.reload("--timeout", "200ms")
        assert done.returncode == 75
        assert "the reload has not ended within 200ms" in done.stderr
        os.kill(daemon.pid, signal.SIGCONT)
        wait_until(lambda: generation(daemon) == (2, 1))
        assert daemon.terminate() == 0


def test_a_supervisor_is_notified_of_each_reload_including_refused_ones(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    site = Site(shop)
    with Init(shop.config, environment={"RUNTIME_DIRECTORY": str(tmp_path)}, watchdog=1) as init:
        init.start()
        assert site.reloaded() == 2
        assert init.count("RELOADING=1") == 1
        assert init.count("READY=1") == 2
        assert "serving: generation 2" in init.told("STATUS")
        shop.config.write_text("[http")
        assert "not TOML" in site.refused()
        init.wait_until(lambda: init.count("READY=1") == 3)
        init.wait_until(lambda: any("generation 2, 1 sink" in s and "not TOML" in s for s in init.told("STATUS")))
        shop.config.write_text(site.first)
        assert site.reloaded() == 3
        init.wait_until(lambda: any(re.search("generation 3, 1 sink.*/s$", s) for s in init.told("STATUS")))
        assert init.stop() == 0


POLITE = """
    import asyncio

    from ingestd.api import hookimpl
    from ingestd.api.options import Options as BaseOptions

    class Plain:
        class Options(BaseOptions):
            word: str = "hello"

        def __init__(self, options):
            self.word = options.word

        @hookimpl
        def enrich(self, event):
            event.context[type(self).__name__] = self.word

    class Polite(Plain):
        @hookimpl
        async def take_over(self, predecessor, daemon):
            assert daemon.plugin("polite") is predecessor
            if self.word == "endless":
                await asyncio.Event().wait()
            if self.word == "not yet":
                raise ConnectionError("the dictionary cannot be reached")
            if self.word == "never":
                raise ZeroDivisionError("a bug")
            self.word = f"{self.word} after {predecessor.word}"

        @hookimpl
        def shutdown(self):
            print(self.word, flush=True)
"""


def test_a_third_party_plugin_with_take_over_is_replaced_at_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = {"polite": "politeness:Polite", "plain": "politeness:Plain"}
    packages = write_distribution(tmp_path / "site", "politeness", modules={"politeness": POLITE}, plugins=plugins)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    enabled = ["keys", "session", "sqlite", "jsonl", "polite", "plain"]
    shop = Shop(tmp_path, {"plugins": f"enabled = {json.dumps(enabled)}"})
    site = Site(shop)
    with short_times(plugin_startup=3.0), serving(shop) as daemon:

        def words() -> dict[str, str]:
            assert daemon.post("/track", EVENT, shop.public.id).status == 200
            context: dict[str, str] = shop.stored()[-1]["context"]
            return context

        site.write(**{"plugins.polite": 'word = "hi"'})
        assert site.reloaded() == 2
        assert words() == {"Polite": "hi after hello", "Plain": "hello"}
        site.write(**{"plugins.polite": 'word = "not yet"'})
        done = site.reload()
        assert done.returncode == 75
        assert "plugin polite: take_over failed: ConnectionError('the dictionary cannot be reached')" in done.stderr
        site.write(**{"plugins.polite": 'word = "never"'})
        assert "plugin polite: take_over failed: ZeroDivisionError('a bug')" in site.refused()
        site.write(**{"plugins.polite": 'word = "endless"'})
        assert "TimeoutError('it takes longer than 3 s, which is the limit')" in site.reload().stderr
        site.write(**{"plugins.polite": 'word = "hi"', "plugins.plain": 'word = "hi"'})
        assert "plugins.plain.word: a reload cannot change it" in site.refused()
        assert words() == {"Polite": "hi after hello", "Plain": "hello"}
        daemon.read_log()
        assert sum("in take_over" in line for line in daemon.log) == 1  # the traceback of the unexpected error
        site.write(**{"plugins.polite": 'word = "hi"', "sinks.second": 'type = "told"'})
        assert "there is no plugin 'told'" in site.refused()


def test_on_redis_too_a_changed_sink_continues_at_its_cursor(tmp_path: Path) -> None:
    with redis_shop(tmp_path) as shop:
        site = Site(shop)
        with serving(shop) as daemon:
            for number in range(2, 5):
                for _ in range(50):
                    assert daemon.post("/track", EVENT, shop.public.id).status == 200
                shop.config.write_text(site.first.replace('"archive.jsonl"', f'"{number}.jsonl"'))
                assert site.reloaded() == number
            wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == 150)
        files = [shop.archive, *(tmp_path / f"{number}.jsonl" for number in range(2, 5))]
        lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
        assert [json.loads(line) for line in lines] == shop.stored()


def test_a_second_daemon_with_the_same_directory_leaves_it_to_the_first(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shop, other = Shop(tmp_path), Shop(tmp_path / "other")
    environment = {"RUNTIME_DIRECTORY": str(tmp_path)}
    with serving(shop) as daemon:
        with Daemon(other.config, environment=environment) as second:
            assert any(f"no run directory: {tmp_path} is another daemon's" in line for line in second.log)
            assert f"(process {daemon.pid})" in Site(shop).reload().stdout
            assert second.terminate() == 0
        assert f"(process {daemon.pid})" in Site(shop).reload().stdout
