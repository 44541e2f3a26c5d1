"""`ingestd check`, and every reason for which `serve` does not start: the messages and the exit codes."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ingestd import __version__
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.distribution import write_distribution
from tests.support.forked import INGESTD

EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}}
IMPATIENT = {"http": 'shutdown_timeout = "200ms"'}  # a stop does not wait long for a sink that cannot write
BOTH = pytest.mark.parametrize("command", ["check", "serve"])
GROUPS = ["versions", "plugins", "schemas", "store", "journal", "consumers", "clock", "sinks", "listeners", "limits"]


@pytest.fixture(params=["beside a daemon", "without a daemon"])
def any_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "without a daemon":
        return Shop(tmp_path)
    request.getfixturevalue("daemon")
    shop: Shop = request.getfixturevalue("shop")
    return shop


@pytest.fixture
def own_shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def why(done: subprocess.CompletedProcess[str]) -> str:
    """The last line on standard error, which is the reason for a failure."""
    return done.stderr.splitlines()[-1]


def checked(shop: Shop, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The output of `check --json`, with the findings of each group by name."""
    done = run_ingestd("check", "--json", *arguments, config=shop.config)
    assert done.returncode == code, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["exitCode"] == code
    for fault in report["faults"]:
        assert fault in why(done)
    return {name: {each["name"]: each for each in value} if name in GROUPS else value for name, value in report.items()}


def where(daemon: Daemon) -> list[str]:
    """The arguments that name the ports the daemon has taken."""
    return [f"--set=http.listen=127.0.0.1:{daemon.port}", f"--set=ops.listen=127.0.0.1:{daemon.ops_port}"]


# Findings


def test_one_page_says_what_is_in_force(any_shop: Shop) -> None:
    done = run_ingestd("check", config=any_shop.config)
    assert (done.returncode, done.stderr) == (0, "")
    title, *lines, verdict = done.stdout.splitlines()
    assert title == f"ingestd check of {any_shop.config}"
    assert verdict == "all is well"
    assert len(lines) < 50
    rows = [re.fullmatch(r"(\w*) +(\S.*?)  +(\S.*)", line) for line in lines]
    assert [row[1] for row in rows if row and row[1]] == GROUPS
    # The columns are aligned, and no line is missing.
    assert len({row.start(column) for row in rows if row for column in (2, 3)}) == 2
    assert all(rows)
    for part in (
        __version__,
        "tornado ",
        "session ",
        str(any_shop.database),
        "33 event keys",
        "sink:archive",
        "open files",
    ):
        assert part in done.stdout


def test_json_has_the_same_facts(any_shop: Shop) -> None:
    page = run_ingestd("check", config=any_shop.config).stdout
    report = checked(any_shop)
    assert [*report] == ["configuration", "exitCode", "faults", "warnings", *GROUPS]
    assert (report["configuration"], report["faults"], report["warnings"]) == (str(any_shop.config), [], [])
    for group in GROUPS:
        for name, finding in report[group].items():
            assert re.search(rf"^({group})? +{name} +", page, re.MULTILINE)
            assert finding["status"] == "ok"
            assert finding["text"]
    assert report["versions"]["ingestd"]["text"] == __version__
    assert report["versions"]["libraries"].keys() >= {"tornado", "msgspec", "pluggy", "aiosqlite"}
    assert report["plugins"]["session"]["source"] == "ingestd.plugins.session:SessionPlugin"
    assert report["schemas"]["event keys"]["count"] == 33
    assert report["store"]["file"]["path"] == str(any_shop.database)
    assert report["store"]["disk"]["freeBytes"] > 0


def test_without_a_daemon_the_store_is_tried_and_ports_are_bound(own_shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    report = checked(own_shop, f"--set=http.listen={address}")
    assert report["store"]["daemon"]["text"] == "none is running on this file"
    assert report["store"]["write"]["text"] == "a trial write is on the disk"
    assert report["listeners"]["events"]["text"] == f"{address} can be bound"
    assert report["consumers"]["sink:archive"]["text"] == "new: it will start with the next record"


def test_a_running_daemon_may_hold_its_ports_and_is_asked_whether_it_is_ready(shop: Shop, daemon: Daemon) -> None:
    report = checked(shop, *where(daemon))
    assert report["store"]["daemon"]["pid"] == daemon.pid
    assert report["store"]["write"]["text"].startswith("not tried")
    assert report["listeners"]["events"]["text"] == f"127.0.0.1:{daemon.port}: the running daemon answers"
    assert report["listeners"]["operators"]["text"].endswith(": the running daemon is ready")
    assert "for the running daemon" in report["limits"]["open files"]["text"]
    # The daemon neither counts nor logs the check.
    daemon.read_log()
    assert [line for line in daemon.log if "OPTIONS" in line] == []


def test_lags_and_the_size_of_the_journal_are_reported(tmp_path: Path) -> None:
    shop = Shop(tmp_path, IMPATIENT)
    shop.archive.mkdir()  # a folder in the file's place, so nothing is delivered
    with shop.serve() as daemon:
        for _ in range(3):
            assert daemon.post("/track", EVENT, shop.public.id).status == 200
    shop.archive.rmdir()
    report = checked(shop)
    assert (report["journal"]["size"]["records"], report["journal"]["size"]["last"]) == (3, 3)
    assert report["journal"]["size"]["bytes"] > 300
    assert report["journal"]["size"]["oldestAgeMilliseconds"] > 0
    sink = report["consumers"]["sink:archive"]
    assert (sink["position"], sink["lag"], sink["configured"], sink["status"]) == (0, 3, True, "ok")
    assert sink["text"].startswith("3 records behind, the oldest received ")
    assert checked(shop, "--set=journal.max_size=1000B")["warnings"][0].startswith("journal: size: 3 records")
    with shop.serve():
        wait_until(lambda: len(shop.archived()) == 3)
    assert checked(shop)["consumers"]["sink:archive"]["text"] == "up to date"


def test_the_cursor_of_a_sink_that_is_not_configured_any_more_is_a_warning(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve():
        pass
    shop.config.write_text(shop.config.read_text().replace("[sinks.archive]", "[sinks.second]"))
    report = checked(shop)
    assert report["consumers"]["sink:second"]["status"] == "ok"
    old = report["consumers"]["sink:archive"]
    assert (old["configured"], old["status"]) == (False, "warning")
    page = run_ingestd("check", config=shop.config).stdout
    assert re.search(r"sink:archive +WARNING: .*no sink or plugin with this name is configured any more", page)
    assert page.endswith("1 warning: exit 0\n")


def test_the_cursor_of_a_sink_with_a_faulty_section_is_still_known_as_a_sink(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve():
        pass
    report = checked(shop, '--set=sinks.archive.filter={ keys = ["Page Veiw"] }', code=78)
    assert [fault.startswith("sinks: archive: ") for fault in report["faults"]] == [True]
    assert report["warnings"] == []
    place = report["consumers"]["sink:archive"]
    assert (place["configured"], place["status"]) == (True, "ok")
    assert place["text"].endswith("; the section of this sink has a fault")


def test_old_records_beside_a_daemon_and_a_clock_that_went_back_are_warnings(tmp_path: Path) -> None:
    shop = Shop(tmp_path, IMPATIENT)
    with shop.serve():
        pass
    hour = 3_600_000
    now = time.time_ns() // 1_000_000
    shop.archive.unlink()
    shop.archive.mkdir()
    with closing(sqlite3.connect(shop.database)) as connection, connection:
        connection.executemany(
            "INSERT INTO journal (at, type, body) VALUES (?, 'event', ?)", [(now - hour, b"{}"), (now + hour, b"{}")]
        )
        connection.execute("UPDATE totals SET records = 2, bytes = 68")
    connection.close()
    with shop.serve():
        report = checked(shop, code=75)  # the warning about the folder where the sink's file should be
        assert report["consumers"]["sink:archive"]["status"] == "warning"
        assert report["clock"]["now"]["status"] == "warning"
        assert "ahead: check the clock" in report["clock"]["now"]["text"]


# Faults


def test_every_fault_of_a_configuration_is_reported(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"htpp": "", "plugins.session": 'idel = "1m"', "sinks.second": 'type = "jsnol"'})
    wrong = ["--set=http.max_body=1", "--set=ops.lisen=1"]
    reasons = [
        "htpp: unknown option; did you mean http?",
        "http.max_body: expected a number with a unit",
        "ops.lisen: unknown option; did you mean ops.listen?",
        "plugins.session.idel: unknown option",
        "sinks.second.type: there is no plugin 'jsnol'; did you mean jsonl?",
    ]
    done = run_ingestd("check", *wrong, config=shop.config)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (78, "5 faults: exit 78")
    told = checked(shop, *wrong, code=78)["faults"]
    assert len(told) == len(reasons)
    for reason in reasons:
        assert [reason in fault for fault in told].count(True) == 1
        assert reason in done.stdout
        assert reason in why(done)
    assert run_ingestd("check", "--help", config=shop.config).returncode == 0


@pytest.mark.parametrize("broken", [True, False])
def test_a_fault_in_one_group_does_not_stop_the_checks_of_others(broken: bool, tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"schemas": 'directory = "schemas"', "sinks.second": 'type = "jsonl"\npath = "second.jsonl"'})
    (tmp_path / "schemas").mkdir()
    for name in ["one", "two"] if broken else []:
        (tmp_path / "schemas" / f"{name}.json").write_text("{")
    (tmp_path / "second.jsonl").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        # A permanent fault decides the exit code, even if there is a temporary one.
        report = checked(shop, f"--set=ops.listen={address}", code=78 if broken else 75)
    faults = report["faults"]
    assert [fault.partition(":")[0] for fault in faults] == [*(["schemas"] if broken else []), "sinks", "listeners"]
    assert "second.jsonl" in faults[-2]
    assert faults[-1] == f"listeners: operators: {address} is in use by a program that is not a daemon of this store"
    if broken:
        assert "one.json: line 1" in faults[0]
        assert "two.json: line 1" in faults[0]
    assert report["sinks"]["archive"]["status"] == "ok"


SINK = '''
    """A sink that cannot be reached, and one that never answers."""

    import asyncio

    from ingestd.api import hookimpl
    from ingestd.api.options import Options, Secret, Url
    from ingestd.api.sink import Sink


    class DeafSink(Sink):
        class Options(Options):
            url: Url
            token: Secret

        async def write(self, batch):
            raise ConnectionRefusedError

        async def check(self):
            url, token = map(str.__str__, (self.options.url, self.options.token))
            raise ConnectionRefusedError(f"{url} refuses s3cr3t-w0rd and {token}")

        async def close(self):
            print("closed", self.name)


    class SilentSink(Sink):
        async def write(self, batch):
            await asyncio.sleep(3600)

        async def check(self):
            await asyncio.sleep(3600)


    @hookimpl
    def register_sinks(register):
        register("deaf", DeafSink)
        register("silent", SilentSink)
'''


def test_sinks_that_cannot_be_reached_may_be_later_and_their_secrets_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {"far_sinks": SINK}
    plugins = {"deaf": "far_sinks", "silent": "far_sinks"}
    write_distribution(tmp_path / "site", "far-sinks", modules=modules, plugins=plugins)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (tmp_path / "token").write_text("t0p-s3cr3t")
    deaf = 'type = "deaf"\nurl = "https://shop:s3cr3t-w0rd@sink.example/in"\ntoken = { file = "token" }'
    shop = Shop(tmp_path, {"sinks.one": deaf, "sinks.two": 'type = "silent"\ntimeout = "200ms"'})
    done = run_ingestd("check", config=shop.config)
    assert done.returncode == 75
    assert "sinks: one: https://shop:***@sink.example/in refuses *** and ***" in why(done)
    assert "sinks: two: a check took longer than 0.2 s" in why(done)
    assert "closed one" in done.stdout
    for secret in ("s3cr3t-w0rd", "t0p-s3cr3t"):
        assert secret not in done.stdout + done.stderr


def test_what_strangers_could_read_is_a_warning_also_if_nothing_answers(tmp_path: Path) -> None:
    kept = 'filter = { types = ["event", "identify"], keys = ["Page View"] }'
    sinks = {
        "sinks.far": 'type = "webhook"\nurl = "http://shop:s3cr3t-w0rd@203.0.113.9:9/in"\ntimeout = "200ms"',
        "sinks.near": 'type = "webhook"\nurl = "http://shop:s3cr3t-w0rd@127.0.0.1:9/in"\ntimeout = "200ms"',
        "sinks.people": f'type = "jsonl"\npath = "people.jsonl"\n{kept}',
    }
    shop = Shop(tmp_path, sinks)
    store = "store.url=redis://:s3cr3t-w0rd@203.0.113.9:9/0"
    done = run_ingestd("check", "--json", "--set", store, "--set", "plugins.redis.timeout=200ms", config=shop.config)
    found = [each for group in ("store", "sinks") for each in json.loads(done.stdout)[group]]
    warned = {each["name"]: each["text"] for each in found if each["status"] == "warning"}
    assert warned == {
        "store.url": "the password is sent to 203.0.113.9 without TLS; use the URL's scheme with TLS, such as rediss",
        "sinks.far.url": "the password is sent to 203.0.113.9 without TLS; use https",
        "sinks.people.filter": "keys limits events only, so all persons' traits pass;"
        " remove identify from types unless you want them",
    }
    assert "s3cr3t-w0rd" not in done.stdout + done.stderr


def test_a_damaged_file_is_a_permanent_fault(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        for _ in range(50):
            assert daemon.post("/track", {**EVENT, "data": {"text": "x" * 3000}}, shop.public.id).status == 200
    with closing(sqlite3.connect(shop.database)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    page = shop.database.read_bytes().index(b"x" * 2000) // size  # of records: a start reads others, and fails
    with shop.database.open("r+b") as file:
        file.seek(page * size)
        file.write(b"\xff" * size)
    report = checked(shop, code=78)
    assert report["store"]["whole"]["text"].startswith(f"{shop.database} is damaged: ")


def test_a_store_that_another_program_has_locked_may_be_free_later(own_shop: Shop) -> None:
    connection = sqlite3.connect(own_shop.database, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN IMMEDIATE")
        report = checked(own_shop, code=75)
    finally:
        connection.close()
    assert "database is locked" in " ".join(report["faults"])


def test_a_full_disk_may_have_room_later(own_shop: Shop) -> None:
    limited = ["sh", "-c", 'ulimit -f 80; exec "$@"', "sh"]  # the kernel refuses larger files
    command = [*limited, INGESTD, "check", "--config", str(own_shop.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 75
    assert re.search(r"store: (write: )?.*(cannot be|disk)", why(done))


# Every reason not to start


def broken_schema(shop: Shop) -> tuple[list[str], str]:
    folder = shop.folder / "schemas"
    folder.mkdir()
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:shop:schema:gift_wrapped",
        "title": "Gift Wrapped",
        "type": "object",
        "properties": {"paper": {"type": "txet"}},
    }
    (folder / "gift_wrapped.json").write_text(json.dumps(schema))
    return [f"--set=schemas.directory={folder}"], f"{folder / 'gift_wrapped.json'}#/properties/paper/type: "


def no_toml(shop: Shop) -> tuple[list[str], str]:
    shop.config.write_text("[http\n")
    return [], f"{shop.config}: not TOML: "


def no_folder(shop: Shop) -> tuple[list[str], str]:
    url = f"sqlite:{shop.config}/ingestd.db"
    return [f"--set=store.url={url}"], "ingestd.toml/ingestd.db: cannot be opened: "


def no_database(shop: Shop) -> tuple[list[str], str]:
    shop.database.write_bytes(b"not a database" * 100)
    return [], f"{shop.database} is damaged: file is not a database"


REASONS: dict[str, Callable[[Shop], tuple[list[str], str]]] = {
    "bad TOML": no_toml,
    "unknown option": lambda shop: (["--set=http.lisen=1"], "http.lisen: unknown option; did you mean http.listen?"),
    "unknown plugin": lambda shop: (['--set=plugins.enabled=["kesy"]'], "no plugin 'kesy'; did you mean keys?"),
    "unknown store": lambda shop: (["--set=store.url=sqlit:x"], "there is no plugin 'sqlit'; did you mean sqlite?"),
    "broken schema": broken_schema,
    "no folder for the store": no_folder,
    "something else in the store's place": no_database,
    "nobody's address": lambda shop: (["--set=http.listen=203.0.113.1:80"], "cannot listen on 203.0.113.1:80: "),
}


@BOTH
@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_not_to_start_is_reported_with_its_exit_code(reason: str, command: str, own_shop: Shop) -> None:
    arguments, text = REASONS[reason](own_shop)
    done = run_ingestd(command, *arguments, config=own_shop.config)
    assert done.returncode == (75 if reason == "nobody's address" else 78), done.stderr
    assert text in why(done)
    assert "Traceback" not in done.stderr


def test_one_file_has_one_daemon(shop: Shop, daemon: Daemon) -> None:
    done = run_ingestd("serve", config=shop.config)
    assert done.returncode == 78
    line = why(done)
    assert f"process {daemon.pid}" in line
    assert str(shop.database) in line
    assert "stop that one, or set another file for this one" in line
    assert daemon.post("/track", EVENT, shop.public.id).status == 200


@BOTH
def test_a_mistake_of_a_plugin_s_author_is_reported_with_its_remedy(
    command: str, own_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {"far_sinks": SINK.replace("def write", "def wirte")}
    write_distribution(own_shop.folder / "site", "far-sinks", modules=modules, plugins={"silent": "far_sinks"})
    monkeypatch.setenv("PYTHONPATH", str(own_shop.folder / "site"))
    done = run_ingestd(command, "--set=sinks.two.type=silent", config=own_shop.config)
    assert done.returncode == 78
    assert "plugin silent: sink type deaf: DeafSink has no write; rename wirte to write" in why(done)
    assert "Traceback" not in done.stderr


@BOTH
@pytest.mark.parametrize("section", ["http", "ops"])
def test_a_port_in_use_is_worth_another_try(section: str, command: str, own_shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = run_ingestd(command, f"--set={section}.listen={address}", config=own_shop.config)
    assert done.returncode == 75
    reason = f"cannot listen on {address}: Address already in use" if command == "serve" else f"{address} is in use by"
    assert reason in why(done)


def test_a_port_of_another_daemon_is_not_taken_for_one_of_this_store(own_shop: Shop, daemon: Daemon) -> None:
    assert len(checked(own_shop, *where(daemon), code=75)["faults"]) == 2


@pytest.fixture
def nobodys() -> Iterator[tuple[Shop, list[str]]]:
    """A shop that belongs to the user nobody, and the prefix that runs commands as that user."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user")
    user = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp())  # not below tmp_path, because only root may enter its parents
    try:
        shop = Shop(folder)
        for path in (folder, *folder.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)
        yield shop, ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    finally:
        shutil.rmtree(folder)


def run_as(prefix: list[str], *arguments: str, config: Path) -> subprocess.CompletedProcess[str]:
    command = [*prefix, INGESTD, *arguments, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@BOTH
def test_a_folder_that_is_not_writable_is_a_permanent_fault(command: str, nobodys: tuple[Shop, list[str]]) -> None:
    shop, prefix = nobodys
    shop.database.unlink()
    os.chown(shop.folder, 0, 0)
    shop.folder.chmod(0o755)
    done = run_as(prefix, command, config=shop.config)
    assert done.returncode == 78
    assert f"{shop.database}: cannot be opened: Permission denied; the daemon must own the folder" in why(done)


@BOTH
def test_a_port_reserved_for_root_is_a_permanent_fault(command: str, nobodys: tuple[Shop, list[str]]) -> None:
    shop, prefix = nobodys
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 80:
        pytest.skip("anyone may have any port here")
    done = run_as(prefix, command, "--set=http.listen=127.0.0.1:80", config=shop.config)
    assert done.returncode == 78
    assert "cannot listen on 127.0.0.1:80: Permission denied; give the daemon the capability" in why(done)


STARTS = """
    import sys

    from ingestd.api import hookimpl


    class Starts:
        def __init__(self, name, error=None):
            self.name, self.error = name, error

        @hookimpl
        def startup(self, daemon):
            if self.error is not None:
                raise self.error
            print("up", self.name, flush=True)

        @hookimpl
        def shutdown(self):
            print("down", self.name, flush=True)


    first, last = Starts("first"), Starts("last")
    refused = Starts("refused", ConnectionRefusedError("nobody listens"))
    wrong = Starts("wrong", KeyError("name"))
"""


@pytest.mark.parametrize(("name", "code", "reason"), [
    ("refused", 75, "plugin refused: startup failed: ConnectionRefusedError('nobody listens')"),
    ("wrong", 78, "plugin wrong: startup failed: KeyError('name')"),
])  # fmt: skip
def test_a_plugin_that_does_not_start_ends_the_started_ones(
    name: str, code: int, reason: str, own_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = own_shop.folder / "site"
    plugins = {each: f"starters:{each}" for each in ("first", "last", "refused", "wrong")}
    write_distribution(site, "starters", modules={"starters": STARTS}, plugins=plugins)
    monkeypatch.setenv("PYTHONPATH", str(site))
    enabled = f'--set=plugins.enabled=["keys", "session", "first", "{name}", "last"]'
    done = run_ingestd("serve", enabled, config=own_shop.config)
    assert (done.returncode, done.stdout.split("\n")) == (code, ["up first", "down first", ""])
    assert reason in why(done)
    assert "Traceback" in done.stderr


# Open files


@pytest.mark.parametrize("hard", [20000, 1024])
def test_the_daemon_raises_its_limit_of_open_files_or_reports_that_it_cannot(hard: int, own_shop: Shop) -> None:
    limits = ("sh", "-c", f'ulimit -Sn 512 && ulimit -Hn {hard} && exec "$@"', "sh")
    with Daemon(own_shop.config, prefix=limits) as daemon:
        assert daemon.metric("process_max_fds") == min(4096 + 256, hard)
        found = checked(own_shop)["limits"]["open files"]
        warned = [
            line for line in daemon.log if "may open only 1024 files, but http.max_connections needs 4352" in line
        ]
        assert daemon.terminate() == 0
    assert (found["soft"], found["hard"], found["needed"]) == (min(4352, hard), hard, 4352)
    assert (found["status"], len(warned)) == (("warning", 1) if hard < 4352 else ("ok", 0))
    assert checked(own_shop, "--set=http.max_connections=100")["limits"]["open files"]["needed"] == 356
