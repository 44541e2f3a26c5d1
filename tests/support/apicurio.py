"""Apicurio Registry, a real schema registry with Confluent's API, for a test. It keeps schemas in memory."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .ports import free_port

__all__ = ["Apicurio", "apicurio"]

_FOLDER = Path(__file__).parents[1] / "kafka" / "apicurio"
_PATIENCE = 120.0


class Apicurio:
    """Any new version of a schema is compatible, as it has no rule."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def answers(self) -> bool:
        try:
            return bool(self.get("/schemas/types"))
        except OSError:
            return False


@contextmanager
def apicurio(folder: Path) -> Iterator[Apicurio]:
    """A running registry. Its log is in `folder`."""
    port = free_port()
    (program,) = _FOLDER.glob("apicurio-registry-app-*-runner.jar")
    options = [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    with (folder / "apicurio.log").open("wb") as log:
        process = subprocess.Popen(["java", *options, "-jar", str(program)], cwd=folder, stdout=log, stderr=log)
    try:
        registry, deadline = Apicurio(port), time.monotonic() + _PATIENCE
        while not registry.answers():
            assert process.poll() is None, (folder / "apicurio.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield registry
    finally:
        process.kill()
        process.wait(20)
