"""A real S3-compatible server (SeaweedFS) for a test, on free ports and with separate data. It is killed at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyarrow.fs import S3FileSystem

from .ports import free_port

__all__ = ["S3Server", "s3_server"]

_KEY, _SECRET = "ingestd-tests", "a-secret-of-the-tests"


class S3Server:
    """A server with the bucket `shop`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._ports = {
            name: free_port()
            for name in (
                "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
                "s3.port", "s3.port.grpc", "s3.port.iceberg",
            )
        }  # fmt: skip
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        user = {"name": "tests", "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}], "actions": actions}
        (folder / "s3.json").write_text(json.dumps({"identities": [user]}))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def storage(self) -> dict[str, str]:
        """The option `storage` of a sink."""
        endpoint = f"127.0.0.1:{self.port}"
        return {
            "access_key": _KEY,
            "secret_key": _SECRET,
            "endpoint_override": endpoint,
            "scheme": "http",
            "region": "eu-1",
        }

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    @property
    def iceberg_port(self) -> int:
        """That of a catalogue of Iceberg over REST."""
        return self._ports["s3.port.iceberg"]

    @property
    def master(self) -> str:
        """The address for `weed shell`."""
        return f"127.0.0.1:{self._ports['master.port']}.{self._ports['master.port.grpc']}"

    @property
    def endpoint(self) -> str:
        return self.storage["endpoint_override"]

    def files(self) -> S3FileSystem:
        arguments: dict[str, Any] = self.storage
        return S3FileSystem(**arguments, allow_bucket_creation=True, allow_bucket_deletion=True)

    def start(self) -> None:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        # 0 switches the other services off.
        ports = {**self._ports, "s3.port.lance": 0}
        arguments = [f"-{name}={port}" for name, port in ports.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    Path(sys.executable).parent / "weed", "server", f"-dir={data}", "-ip=127.0.0.1", "-s3", "-filer",
                    f"-s3.config={self.folder / 's3.json'}", "-master.telemetry=false", "-master.volumeSizeLimitMB=64",
                    *arguments,
                ],
                stdout=log, stderr=log, cwd=self.folder, env={**os.environ, "HOME": str(self.folder)},
            )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            try:
                files = self.files()
                files.create_dir("shop")
                with files.open_output_stream("shop/ready") as stream:
                    stream.write(b"yes")
            except OSError:
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.2)
            else:
                return

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
