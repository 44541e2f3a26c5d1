"""`ingestd events import` that is killed, or waits for the daemon."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE, Shop
from tests.support.forked import INGESTD, Command
from tests.support.imports import TENANT, import_, message, running, shop_on, written

_PLACES = pytest.mark.parametrize(
    ("store", "beside"),
    [("sqlite", True), ("sqlite", False), ("redis", True)],
    ids=["SQLite beside a daemon", "SQLite without a daemon", "Redis beside a daemon"],
)


@_PLACES
def test_a_killed_import_goes_on_when_it_runs_again(tmp_path: Path, store: str, *, beside: bool) -> None:
    records = [message(number) for number in range(3000)]
    file = written(tmp_path / "files", records)
    command = [INGESTD, "events", "import", str(file), *TENANT]
    with shop_on(store, tmp_path / "shop") as shop, running(shop, beside=beside):
        for part in (1, 2):
            with Command([*command, "--config", str(shop.config)], stderr=subprocess.DEVNULL) as running_:
                wait_until(lambda part=part: len(shop.stored()) >= 500 * part)  # type: ignore[misc]  # a default
                running_.send_signal(signal.SIGKILL)
                running_.wait(PATIENCE)
        assert 1000 <= len(shop.stored()) < len(records)
        told = import_(shop, file, *TENANT)
        assert told["counts"]["imported"] + told["counts"]["duplicate"] == len(records)
        assert [record["messageId"] for record in shop.stored()] == [record["messageId"] for record in records]


@_PLACES
def test_ctrl_c_says_how_far_it_came_and_a_second_run_goes_on(tmp_path: Path, store: str, *, beside: bool) -> None:
    records = [message(number) for number in range(3000)]
    file = written(tmp_path / "files", records)
    command = [INGESTD, "events", "import", str(file), *TENANT, "--state"]
    with shop_on(store, tmp_path / "shop") as shop, running(shop, beside=beside):
        with Command([*command, "--config", str(shop.config)], stderr=subprocess.PIPE) as running_:
            wait_until(lambda: len(shop.stored()) >= 250)
            running_.send_signal(signal.SIGINT)
            _, err = running_.communicate(timeout=PATIENCE)
        assert running_.returncode == 130
        stored = len(shop.stored())
        assert (
            err.decode().splitlines()[-1] == f"interrupted after {stored} lines; run the command again, and it goes on"
        )
        assert b"Traceback" not in err
        told = import_(shop, file, *TENANT, "--state")
        assert told["counts"] == {"imported": len(records) - stored, "duplicate": stored}


def test_ctrl_c_during_the_start_is_quiet() -> None:
    """The process interrupts itself, so the moment is certain."""
    program = (
        "import sys, os, signal, builtins; real = builtins.__import__\n"
        "def patched(name, *rest):\n"
        "    if name == 'ingestd.cli.main': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = patched\n"
        "from ingestd.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_an_import_waits_while_the_journal_is_full(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'max_size = "1MiB"'})
    records = [message(number) for number in range(2600)]
    with shop.serve() as daemon:
        assert import_(shop, written(tmp_path, records), *TENANT)["counts"] == {"imported": len(records)}
        wait_until(lambda: len(shop.archived()) == len(records))
        daemon.read_log()
        assert not any("events are refused" in line for line in daemon.log)
