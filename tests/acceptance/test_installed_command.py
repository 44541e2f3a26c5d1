"""Every command as an installed process. Other tests fork commands, which must be like installed ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.kernel.cli.test_command_line import COMMANDS
from tests.support import forked
from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE, Daemon, Shop
from tests.support.forked import INGESTD, run
from tests.support.processes import children, open_files

INSTALLED = ("env",)
"""The prefix of a daemon that is not forked."""
USES = {
    "serve": ("--help", 0, "usage: ingestd serve"),
    "reload": ("", 0, "generation 2 of the configuration is in force"),
    "check": ("", 0, "ingestd check of"),
    "config show": ("", 0, "# The configuration in force"),
    "openapi": ("", 0, '{\n  "openapi"'),
    "models": ("duckdb", 0, "CREATE OR REPLACE VIEW"),
    "events export": ("--limit 1", 0, '{"id":"'),
    "webhooks test": ("shop missing.json", 1, "no webhook has the name shop"),
    "schemas check": ("--against 1h", 0, "the schemas take all"),
    "schemas catalogue": ("", 0, "KEY"),
    "lake compact": ("", 1, "name a sink of the type parquet or iceberg: there is none"),
    "lake erasures": ("", 1, "name a sink of the type iceberg: there is none"),
    "lake expire": ("", 1, "name a sink of the type iceberg: there is none"),
    "lake rewrite": ("", 1, "name a sink of the type iceberg: there is none"),
    "sinks verify": ("archive --since 1h", 1, "a sink of the type jsonl cannot be asked"),
    "events import": ("missing.jsonl --tenant shop", 1, "missing.jsonl"),
    "store acknowledge-loss": ("", 0, "there is no loss of data"),
    "store upgrade": ("", 1, "a daemon has the file"),
    "store copy": ("--from sqlite:ingestd.db --to sqlite:other.db", 1, "a daemon serves from"),
    "store compare": ("--from sqlite:ingestd.db --to sqlite:other.db", 1, "a daemon serves from"),
    "store backup": ("backup.tar", 0, "written and checked"),
    "store restore": ("backup.tar", 1, "a daemon has the file"),
    "forget": ("--user nobody", 0, "nothing to forget"),
    "partitions show": ("", 0, "PARTITION"),
    "partitions place": ("shop --partition 01", 1, "there is no other place for a tenant"),
    "sinks status": ("", 0, "SINK"),
    "sinks replay": ("archive --from 1h --no-wait", 0, "archive"),
    "sinks pause": ("archive", 0, "archive is paused"),
    "sinks resume": ("archive", 0, "archive continues"),
    "sinks dead-letters list": ("archive", 0, "archive has no dead letters"),
    "sinks dead-letters show": ("archive 1", 1, "archive has no dead letter 1"),
    "sinks dead-letters retry": ("archive --all", 0, "archive has no dead letters"),
    "sinks dead-letters discard": ("archive --all", 1, "confirm with --yes"),
    "install-units": ("--prefix here", 1, "expected an absolute path"),
    "plugins list": ("", 0, "NAME"),
    "completion": ("bash", 0, "# AUTOMATICALLY GENERATED"),
    "attribution show": ("order-1", 1, "the order 'order-1' is not attributed"),
    "attribution channel": ("--source google --medium cpc", 0, "channel   Paid Search"),
    "attribution report": ("--since 1h", 0, "(direct)"),
    "costs import": ("none.csv --tenant shop", 1, "none.csv: No such file or directory"),
    "costs list": ("", 0, "no costs"),
    "costs remove": (
        "--since 2026-11-01 --until 2026-11-30 --tenant shop --dry-run",
        0,
        "costs of shop: would be none",
    ),
    "keys create": ("--kind public --tenant shop", 0, "id:      pk_"),
    "keys list": ("", 0, "ID "),
    "keys rotate": ("none", 1, "there is no such key"),
    "keys revoke": ("none", 1, "there is no such key"),
}
"""Arguments of each command, its exit code, and text that it writes."""
ALIKE = ("openapi", "config show", "keys list", "plugins list", "keys revoke none", "sinks replay", "--help")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop beside its installed daemon, which has stored an event."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    with Daemon(shop.config, prefix=INSTALLED) as daemon:
        body = {"key": "Page View", "anonymousId": "v", "data": {}}
        assert daemon.post("/track", body, shop.public.id).status == 200
        wait_until(lambda: shop.is_done("sink:archive", "attribution"))
        yield shop
        assert daemon.terminate() == 0


def test_each_command_has_a_use() -> None:
    assert USES.keys() == {name.removeprefix("ingestd ") for name in COMMANDS}


@pytest.mark.parametrize("command", USES)
def test_an_installed_command(command: str, shop: Shop) -> None:
    arguments, code, text = USES[command]
    done = installed(shop, f"{command} {arguments}".strip())
    assert done.returncode == code, done.stderr
    assert text in (done.stderr if code else done.stdout)
    assert "Traceback" not in done.stderr


def test_the_module_is_the_command(shop: Shop) -> None:
    module = [sys.executable, "-m", "ingestd"]
    done = subprocess.run([*module, "check", "--set", "no.such=1"], cwd=shop.folder, capture_output=True, check=False)
    assert done.returncode == 78
    assert subprocess.check_output([*module, "--version"]).startswith(b"ingestd ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_end_an_installed_daemon_and_keep_its_events(number: signal.Signals, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with Daemon(shop.config, prefix=INSTALLED) as daemon:
        body = {"key": "Page View", "anonymousId": "v", "data": {}}
        assert daemon.post("/track", body, shop.public.id).status == 200
        os.kill(daemon.pid, number)
        assert daemon.wait() == (-number if number is signal.SIGKILL else 0)
    assert len(shop.stored("Page View")) == 1


@pytest.mark.parametrize("command", ALIKE)
def test_a_forked_command_is_like_the_installed_one(command: str, shop: Shop, always_forked: None) -> None:
    # A command without effects has been run already as one of USES.
    real, fork = installed(shop, command), run(words(shop, command), cwd=shop.folder, text=True)
    assert fork.returncode == real.returncode
    assert fork.stdout == real.stdout
    assert fork.stderr[30:] == real.stderr[30:]  # without the time


def test_a_forked_daemon_is_a_process_of_its_own(tmp_path: Path, always_forked: None) -> None:
    shop = Shop(tmp_path)
    seen: list[tuple[object, ...]] = []
    numbers: list[int] = []
    for prefix in (INSTALLED, ()):
        with Daemon(shop.config, prefix=prefix) as daemon:
            assert daemon.pid in children(os.getpid())
            process = Path("/proc", str(daemon.pid))
            status = dict(line.split(":\t") for line in (process / "status").read_text().splitlines())
            kept = ("PPid", "NSsid", "NSpgid", "Umask", "SigIgn", "SigCgt")
            command = [word for word in (process / "cmdline").read_bytes().split(b"\0") if word]
            environment = {*(process / "environ").read_bytes().split(b"\0")}
            environment = {each for each in environment if not each.startswith((b"PYTEST_", b"_="))}
            files = [target for number, target in sorted(open_files(daemon.pid).items()) if number < 3]
            seen.append(
                ({name: status[name] for name in kept}, command, environment, files[:2], os.readlink(process / "cwd"))
            )
            numbers.append(fewest_open_files(daemon.pid))
            os.kill(daemon.pid, signal.SIGKILL)
            assert daemon.wait() == -signal.SIGKILL
    assert seen[0] == seen[1]
    assert numbers[0] == numbers[1]


def fewest_open_files(pid: int) -> int:
    """The number of files that a daemon has open all the time. It opens others for a moment."""
    wait_until(lambda: any(name.endswith("schedstat") for name in open_files(pid).values()))  # the last one
    fewest = sys.maxsize
    for _ in range(50):
        fewest = min(fewest, len(open_files(pid)))
        time.sleep(0.01)
    return fewest


def test_a_forked_command_reads_and_writes_the_streams_of_its_caller(shop: Shop, always_forked: None) -> None:
    done = run(
        words(shop, "sinks dead-letters discard archive --all"), cwd=shop.folder, input="", text=True,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert "confirm with --yes" in done.stdout
    assert done.stderr is None
    old = os.umask(0o027)
    try:
        assert run(words(shop, "store backup private.tar"), cwd=shop.folder).returncode == 0
    finally:
        os.umask(old)
    assert (shop.folder / "private.tar").stat().st_mode & 0o777 == 0o600


def test_a_fork_server_ends_with_its_process() -> None:
    program = (
        "import os, tests.support.forked as f; f._DEARER_THAN = 0; f.run([f.INGESTD, '--version']);"
        "print(*[s._server._process.pid for s in f._starts.values()], flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not Path("/proc", done.stdout.strip(), "cwd").is_symlink())


@pytest.fixture
def always_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_DEARER_THAN", 0)


def words(shop: Shop, command: str) -> list[str]:
    location = (
        [] if command.endswith("--help") or command.startswith("install-units") else ["--config", str(shop.config)]
    )
    return [INGESTD, *command.split(), *location]


def installed(shop: Shop, command: str) -> subprocess.CompletedProcess[str]:
    return _run_installed(*words(shop, command), folder=shop.folder)


@cache
def _run_installed(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
