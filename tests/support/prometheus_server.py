"""A real Prometheus server for a test: on a free port, with separate data. It is killed at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .ports import free_port

__all__ = ["CONF", "PrometheusServer", "prometheus_server", "promtool"]

CONF = Path(__file__).parents[2] / "conf" / "prometheus"


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    program = str(beside) if beside.exists() else shutil.which(name)
    assert program is not None, f"there is no {name}; scripts/prometheus {beside.parent} puts it there"
    return program


def promtool(*arguments: str | Path, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [_program("promtool"), *map(str, arguments)],
        input=text,
        capture_output=True,
        timeout=300,  # a day of rules takes 12 s of CPU, and the machine may be busy
        check=False,
        env={**os.environ, "GOGC": "800"},  # it collects garbage for a fifth of its time otherwise
    )


class PrometheusServer:
    """A server with this configuration file. `folder` has its data and its log."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.port = free_port()
        self._log = folder / "log"
        command = [
            _program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self) -> None:
        """Waits until the server answers queries."""
        deadline = time.monotonic() + 20
        while not self._is_ready():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """The answer of the API, which must be a success."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The present series of an expression. `metric` has the labels, `value` or `values` the values."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def rules(self, kind: str) -> list[dict[str, Any]]:
        """All rules of a kind, `recording` or `alerting`."""
        groups = self.get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"] if rule["type"] == kind]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)


@contextmanager
def prometheus_server(config: Path, folder: Path) -> Iterator[PrometheusServer]:
    server = PrometheusServer(config, folder)
    try:
        server.wait()
        yield server
    finally:
        server.kill()
