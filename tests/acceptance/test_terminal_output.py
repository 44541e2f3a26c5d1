"""Every command with ASCII output, with closed standard streams, and with a pipe without a reader."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE, Daemon, Shop, run_ingestd
from tests.support.forked import INGESTD, run
from tests.support.ports import free_port
from tests.support.sink_desk import QUICK
from tests.support.told_sink import Told

ODD = "Größe „S“ → 日本 🎄 e\u0301"
EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {"number": 1, "text": ODD}}

PEOPLE = [
    "attribution report --since 1h",
    "attribution show o-1",
    "check",
    "forget --anonymous visitor --dry-run",
    "install-units --dry-run --prefix PREFIX",
    "keys create --kind server --tenant shop --label ODD",
    "keys list",
    "plugins list",
    "reload --directory RUNTIME",
    "sinks status",
    "sinks pause crm",
    "sinks resume crm",
    "sinks replay archive --from 1",
    "sinks dead-letters list crm",
    "sinks dead-letters show crm 1",
    "sinks dead-letters discard crm 99 --yes",
    "--help",
    "--version",
]
"""Commands whose output is text for people."""

DATA = [
    "attribution report --since 1h --csv",
    "attribution report --since 1h --json",
    "attribution show o-1 --json",
    "check --json",
    "config show",
    "config show --json",
    "events export",
    "keys list --json",
    "plugins list --json",
    "sinks dead-letters list crm --json",
    "sinks dead-letters show crm 1 --json",
    "sinks status --json",
]
"""Commands whose output is for programs."""

EXPECTED_CODES = {"sinks dead-letters discard crm 99 --yes": 1}


class Site:
    """A shop with a daemon, and with non-ASCII names in all texts that commands show."""

    def __init__(self, folder: Path) -> None:
        self.told = Told(folder)
        self.told.tell(reject={1: ODD})
        tables = {
            **self.told.options(QUICK),
            "schemas": 'directory = "größe"',
            "plugins.attribution": f'exclude_sources = ["{ODD}x"]',
        }
        (folder / "größe").mkdir()
        self.shop = Shop(folder, tables)
        self._prefix = folder / "prefix"
        (self._prefix / "bin").mkdir(parents=True)
        (self._prefix / "bin" / "ingestd").symlink_to(INGESTD)

    @contextmanager
    def serving(self) -> Iterator[None]:
        with Daemon(self.shop.config, environment={"RUNTIME_DIRECTORY": str(self.shop.folder)}) as daemon:
            campaign = {"campaign": {"source": ODD, "medium": "=x", "name": ODD}}
            order = {"order_id": "o-1", "total": 5, "currency": "EUR"}
            for body in (
                {**EVENT, "context": campaign},
                {"key": "Order Completed", "anonymousId": "visitor", "data": order},
            ):
                assert daemon.post("/track", body, self.shop.public.id).status == 200
            wait_until(lambda: daemon.metric('ingestd_attribution_orders_total{result="attributed"}') == 1)
            wait_until(lambda: daemon.metric('ingestd_sink_dead_letters{sink="crm"}') == 1)
            wait_until(lambda: self.shop.is_done("attribution", "sink:archive"))
            yield
            assert daemon.terminate() == 0

    def arguments(self, command: str) -> list[str]:
        named = {"PREFIX": str(self._prefix), "RUNTIME": str(self.shop.folder), "ODD": ODD}
        words = [named.get(word, word) for word in command.split()]
        return words if command.endswith(("--help", "--version")) else [*words, "--config", str(self.shop.config)]

    def run(self, command: str, *, redirected: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
        shell = ["sh", "-c", f'exec "$@" {redirected}', "sh"] if redirected else []
        return run(
            [*shell, INGESTD, *self.arguments(command)],
            stdin=subprocess.DEVNULL, timeout=PATIENCE, env={**os.environ, "PYTHONUTF8": "0", **environment},
        )  # fmt: skip

    def run_closed(self, command: str) -> subprocess.CompletedProcess[bytes]:
        """Runs the command with closed standard streams."""
        return run([INGESTD, *self.arguments(command)], closed=True, timeout=PATIENCE)

    def run_without_a_reader(self, command: str) -> subprocess.CompletedProcess[bytes]:
        """Runs the command with a pipe that nobody reads."""
        reading, writing = os.pipe()
        os.close(reading)
        try:
            return run([INGESTD, *self.arguments(command)], stdin=subprocess.DEVNULL, stdout=writing, timeout=PATIENCE)
        finally:
            os.close(writing)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, told_sink: None) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("terminal"))
    with site.serving():
        yield site


@pytest.mark.parametrize("command", [*PEOPLE, *DATA])
def test_a_command_works_with_ascii_output_closed_streams_and_broken_pipes(site: Site, command: str) -> None:
    with ThreadPoolExecutor(2) as threads:
        ascii_run = threads.submit(site.run, command, PYTHONIOENCODING="ascii")
        closed_run = threads.submit(site.run_closed, command)
        left_run = threads.submit(site.run_without_a_reader, command)
    in_ascii, closed, left = ascii_run.result(), closed_run.result(), left_run.result()
    code = EXPECTED_CODES.get(command, 0)
    assert (in_ascii.returncode, closed.returncode, left.returncode) == (code, code, code), (
        in_ascii.stderr + left.stderr
    )
    for done in (in_ascii, left):
        assert b"Traceback" not in done.stderr
        assert b"Error" not in done.stderr
        assert b"Exception ignored" not in done.stderr
    assert in_ascii.stdout or code
    shown = in_ascii.stdout.decode()  # data is UTF-8 in any locale
    if command in PEOPLE:
        assert shown.isascii()
    elif "--json" in command or "export" in command:
        assert [json.loads(line) for line in shown.split("\n")[:-1]]
    else:
        assert ODD in shown


def test_a_report_has_bars_of_ascii(site: Site) -> None:
    report = site.run("attribution report --since 1h", PYTHONIOENCODING="iso8859-1").stdout.decode("latin-1")
    (row,) = [line for line in report.split("\n") if line.startswith("Größe")]
    assert row.endswith("  " + 24 * "#")
    assert 'Größe ?S" > ???? ?? e' in row


def test_only_standard_output_may_be_closed(site: Site) -> None:
    for command in ("attribution report --since 1h", "events export", "--help"):
        done = site.run(command, redirected=">&-")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_started_command_may_have_closed_streams(site: Site) -> None:
    """As those above, which are forked."""
    for command, code in (("sinks status", 0), ("sinks dead-letters show crm 99", 1)):
        assert site.run(command, redirected="<&- >&- 2>&-").returncode == code


def test_standard_error_may_have_lost_its_reader(site: Site) -> None:
    """The exit code is the same if both streams go into one pipe without a reader."""
    for command, code in (("sinks status", "0"), ("sinks dead-letters show crm 99", "1")):
        arguments = site.arguments(command)
        done = subprocess.run(
            ["bash", "-c", '"$@" 2>&1 | true; echo "${PIPESTATUS[0]}"', "bash", INGESTD, *arguments],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.stdout == f"{code}\n"


def test_a_full_disk_is_reported(site: Site) -> None:
    done = site.run("attribution report --since 1h", redirected=">/dev/full")
    assert done.returncode == 75
    assert done.stderr.decode().strip().endswith("No space left on device")
    assert b"Exception ignored" not in done.stderr


def test_a_check_without_a_reader_still_reports_its_faults(tmp_path: Path) -> None:
    (tmp_path / "ingestd.toml").write_text('[http]\nmax_bdy = "1MiB"\n')
    arguments = [INGESTD, "check", "--config", str(tmp_path / "ingestd.toml")]
    done = subprocess.run(
        ["bash", "-c", '"$@" | true; echo "${PIPESTATUS[0]}"', "bash", *arguments],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.stdout == "78\n"
    assert "max_bdy" in done.stderr
    assert run_ingestd("check", config=tmp_path / "ingestd.toml").returncode == 78


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "ascii"])
def test_a_daemon_starts_whatever_its_standard_streams_are(tmp_path: Path, *, closed: bool) -> None:
    shop, port = Shop(tmp_path, {"plugins.attribution": f'exclude_sources = ["{ODD}"]'}), free_port()
    redirected = "<&- >&- 2>&-" if closed else ""
    daemon = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", INGESTD, "serve", "--config", str(shop.config),
         "--set", f"ops.listen=127.0.0.1:{port}"],
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(ready)
        for number in (0, 1, 2) if closed else ():
            assert os.readlink(f"/proc/{daemon.pid}/fd/{number}") == os.devnull
    finally:
        daemon.terminate()
        assert daemon.wait(PATIENCE) == 0
