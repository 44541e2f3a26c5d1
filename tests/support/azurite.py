"""Azurite, the emulator of Azure Blob Storage, for a test, on a free port and with separate data. It ends with it."""

from __future__ import annotations

import hmac
import os
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pyarrow.fs import AzureFileSystem

from .ports import free_port

__all__ = ["Azurite", "azurite"]

_PROGRAM = Path(__file__).parents[1] / "azurite" / "node_modules" / ".bin" / "azurite-blob"


class Azurite:
    """A server with the container `shop`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        address = f"127.0.0.1:{self._port}"
        self.storage = {
            "account_name": "shopaccount",
            "account_key": b64encode(b"a-secret-of-the-tests").decode(),
            "blob_storage_authority": address,
            "blob_storage_scheme": "http",
            "dfs_storage_authority": address,
            "dfs_storage_scheme": "http",
        }
        """The option `storage` of a sink."""

    def files(self) -> AzureFileSystem:
        arguments: dict[str, Any] = self.storage
        return AzureFileSystem(**arguments)

    def token(self) -> str:
        """A token for all files until 2036 (SAS)."""
        parts = {"sv": "2021-12-02", "ss": "b", "srt": "sco", "sp": "rwdlac", "se": "2036-01-01T00:00:00Z"}
        lines = [self.storage["account_name"], parts["sp"], "b", "sco", "", parts["se"], "", "", parts["sv"], "", ""]
        key = b64decode(self.storage["account_key"])
        signature = b64encode(hmac.digest(key, "\n".join(lines).encode(), "sha256")).decode()
        return urlencode({**parts, "sig": signature})

    def start(self) -> None:
        command = [
            str(_PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(self._port), "--location", str(self._folder),
        ]  # fmt: skip
        # The client of pyarrow may speak a version of the protocol that is newer than Azurite.
        command += ["--skipApiVersionCheck", "--disableTelemetry"]
        account = f"{self.storage['account_name']}:{self.storage['account_key']}"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, env={**os.environ, "AZURITE_ACCOUNTS": account}
            )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            assert self._process is not None
            text = (self._folder / "log").read_text(errors="replace")
            assert self._process.poll() is None, text
            try:
                self.files().create_dir("shop")
            except OSError:
                assert time.monotonic() < deadline, text
                time.sleep(0.2)
            else:
                return

    def stop(self) -> None:
        """End it as SIGTERM does: after a kill, Azurite lacks what it took in the last seconds."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None


@contextmanager
def azurite(folder: Path) -> Iterator[Azurite]:
    server = Azurite(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
