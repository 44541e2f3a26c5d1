"""A real daemon for the tests of a plugin: the installed `ingestd serve`, as a process with a new folder.

::

    CONFIG = '''
    [sinks.orders]
    type = "orders_csv"
    folder = "orders"
    '''

    def test_an_order_is_kept(tmp_path):
        with running_daemon(tmp_path, CONFIG) as daemon:
            daemon.track({"key": "Order Completed", "data": {"order_id": "o-1"}})
            daemon.wait_until_delivered()
            assert daemon.dead_letters("orders") == []
        assert "o-1" in ...

It needs ingestd and nothing else. If an assertion in the `with` block fails, the error includes the daemon's log.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["TENANT", "Daemon", "Reply", "running_daemon"]

TENANT = "shop"
"""The tenant of the events."""

_BASE = "/api/v1/analytics"
_HOST = "127.0.0.1"
_PATIENCE = 20.0
_LOOK = 0.05
_STALE = 0.3  # seconds after which the metrics include the newest record


@dataclass(frozen=True)
class Reply:
    """An HTTP response. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Daemon:
    """A daemon with its configuration, store and log in one folder. `running_daemon` makes one."""

    def __init__(self, folder: Path, config: str = "", *, plugins: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._config = folder / "ingestd.toml"
        self._config.write_text(config)
        self._log = folder / "ingestd.log"
        self._environment = _environment(folder, plugins or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        """Whether a test has stopped it."""
        self._port = self._ops_port = 0
        created = self.command("keys", "create", "--kind", "public", "--tenant", TENANT, "--json")
        self.key: str = json.loads(created)["id"]
        """The id of a public key of the tenant."""

    @property
    def log(self) -> str:
        """The log of all starts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the daemon, also again after `terminate` or `kill`. Returns when it is ready."""
        assert not self.running, "the daemon is already running"
        begin = len(self.log)
        self._stopped = False
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command("serve"), *_OVERRIDES], stdout=log, stderr=log, cwd=self.folder, env=self._environment
            )
        self.wait_until(lambda: re.search("ready: ", self.log[begin:]), what="ready")
        ports = {
            who: int(port)
            for who, port in re.findall(r"listening for (events|operators) on http://\S*:(\d+)", self.log[begin:])
        }
        self._port, self._ops_port = ports["events"], ports["operators"]

    def terminate(self) -> int:
        """Stop the daemon as an operator does (SIGTERM): sinks catch up first. Returns the exit code."""
        return self._stop(signal.SIGTERM)

    def kill(self) -> None:
        """Stop the daemon as a crash does (SIGKILL)."""
        self._stop(signal.SIGKILL)

    def _stop(self, number: signal.Signals) -> int:
        self._must_run()
        assert self._process is not None
        self._stopped = True
        self._process.send_signal(number)
        return self._process.wait(_PATIENCE)

    def end(self) -> None:
        """Stop the daemon if it still runs. Fails if it has ended before, or if its exit code is not 0."""
        if not self._stopped:
            code = self.terminate()
            assert code == 0, f"the exit code is {code}"

    def track(self, event: Mapping[str, Any]) -> str:
        """Send an event as a shop's page does, and return the id of its record.

        `anonymousId` and `data` are optional. Fails if the daemon does not accept the event.
        """
        return self._accepted("/track", {"anonymousId": "visitor-1", "data": {}, **event})

    def identify(self, **members: Any) -> str:
        """Send an identify request, and return the id of its record. `anonymousId` is optional."""
        return self._accepted("/identify/public", {"anonymousId": "visitor-1", **members})

    def _accepted(self, path: str, body: Mapping[str, Any]) -> str:
        answer = self.post(path, body)
        assert answer.status == 200, f"answered {answer.status}: {answer.body.decode()}"
        return answer.headers["x-request-id"]

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """Post JSON, or bytes unchanged, with the public key to `/track`, `/identify/public` …"""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        authorized = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        return self._request("POST", self._port, _BASE + path, raw, authorized)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Request any path of the public listener, such as that of an intake. No key is added."""
        return self._request(method, self._port, path, body, headers)

    def _request(
        self, method: str, port: int, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        self._must_run()
        connection = http.client.HTTPConnection(_HOST, port, timeout=_PATIENCE)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException):
            if self._process is not None:  # it closes its connections shortly before it ends
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(1)
            self._must_run()
            raise
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """The samples of `/metrics` by name and labels, as printed there: `ingestd_sink_pending{sink="orders"}`."""
        shown = self._request("GET", self._ops_port, "/metrics").body.decode().splitlines()
        samples = (line.rpartition(" ") for line in shown if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def records(self, type: str | None = None) -> list[dict[str, Any]]:
        """The records of the journal, of one type or all, oldest first."""
        return _lines(self.command("events", "export", *(["--type", type] if type is not None else [])))

    def dead_letters(self, sink: str) -> list[dict[str, Any]]:
        """The dead letters of the sink, oldest first, each with `id`, `reason`, `attempts` …"""
        return _lines(self.command("sinks", "dead-letters", "list", sink, "--json"))

    def command(self, *arguments: str) -> str:
        """Run an `ingestd` command, with or without a running daemon. It must succeed. Returns its output."""
        done = subprocess.run(
            [*self._command(*arguments), *_OVERRIDES],
            capture_output=True, text=True, cwd=self.folder, env=self._environment, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"ingestd {' '.join(arguments)} exits {done.returncode}:\n{done.stderr}"
        return done.stdout

    def wait_until_delivered(self, patience: float = _PATIENCE) -> None:
        """Wait until every sink, and every other consumer of the journal, has processed all accepted records.

        Records that became dead letters count as processed; see `dead_letters`. If a sink keeps failing, this fails
        after `patience` seconds, and the error includes the log.
        """
        waiting: dict[str, float] = {}
        quiet = 0

        def delivered() -> bool:
            nonlocal waiting, quiet
            waiting = {
                name: number
                for name, number in self.metrics().items()
                if name.startswith("ingestd_consumer_pending{") and number
            }
            quiet = 0 if waiting else quiet + 1
            if 0 < quiet < 3:  # three times: for an event, a record derived from it, and both in the sinks
                time.sleep(_STALE)
            return quiet == 3

        self.wait_until(delivered, patience, what=lambda: f"delivered; waiting: {waiting}")

    def wait_until(
        self, condition: Callable[[], object], patience: float = _PATIENCE, *, what: str | Callable[[], str] = "so"
    ) -> None:
        """Wait until the condition is true. Fails after `patience` seconds, or if the daemon ends."""
        deadline = time.monotonic() + patience
        while not condition():
            self._must_run()
            if time.monotonic() > deadline:
                raise AssertionError(f"not {what() if callable(what) else what} after {patience:g} s")
            time.sleep(_LOOK)

    def _must_run(self) -> None:
        if not self.running:
            code = None if self._process is None else self._process.returncode
            raise AssertionError(
                "the daemon was never started" if code is None else f"the daemon has ended, exit code {code}"
            )

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "ingestd", *arguments, "--config", str(self._config)]


_OVERRIDES = [
    part
    for option in (f"http.listen={_HOST}:0", f"ops.listen={_HOST}:0", "store.url=sqlite:ingestd.db", "logs.format=text")
    for part in ("--set", option)
]
"""Options that every configuration gets: free ports, and a store in the folder."""


def _environment(folder: Path, plugins: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process, with a module path on which the plugins are found as if installed."""
    site = folder / "site"
    metadata = site / "plugins_under_test-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins-under-test\nVersion: 0\n")
    points = "".join(f"{name} = {target}\n" for name, target in plugins.items())
    (metadata / "entry_points.txt").write_text(f"[ingestd]\n{points}")
    path = [str(site), *(os.path.abspath(entry) for entry in sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _lines(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.split("\n") if line]


@contextmanager
def running_daemon(folder: Path, config: str = "", *, plugins: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    """A running daemon, which is stopped at the end and must exit 0.

    `config` is TOML, with paths relative to the folder. The ports and the store are always set: free ports, and a
    SQLite file in the folder. An existing file is used again.

    Installed plugins are found as usual. `plugins` adds others that the test can import, in the form of entry
    points: `{"orders_csv": "ingestd_orders_csv"}`, or `"module:Class"`.
    """
    daemon = Daemon(folder, config, plugins=plugins)
    try:
        daemon.start()
        yield daemon
        daemon.end()
    except BaseException as error:
        error.add_note(f"log of the daemon:\n{daemon.log}")
        raise
    finally:
        if daemon.running:
            daemon.kill()
