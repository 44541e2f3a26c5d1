"""An emulator of Google Cloud Storage for a test, on a free port and in memory. It is killed at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyarrow.fs import GcsFileSystem

from .ports import free_port

__all__ = ["GcsServer", "gcs_server"]


class GcsServer:
    """A server with the bucket `shop`."""

    def __init__(self) -> None:
        self.storage = {"anonymous": "true", "scheme": "http", "endpoint_override": f"127.0.0.1:{free_port()}"}
        """The option `storage` of a sink."""

    def files(self) -> GcsFileSystem:
        arguments: dict[str, Any] = {**self.storage, "anonymous": True}
        return GcsFileSystem(**arguments)


@contextmanager
def gcs_server(folder: Path) -> Iterator[GcsServer]:
    server = GcsServer()
    port = server.storage["endpoint_override"].rpartition(":")[2]
    command = [
        str(Path(sys.executable).parent / "gcp-storage-emulator"),
        "start",
        "--in-memory",
        "--default-bucket=shop",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--host=127.0.0.1", f"--port={port}"], stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while "All services started" not in (text := (folder / "log").read_text()):
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait()
