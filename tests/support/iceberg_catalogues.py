"""Real catalogues of Iceberg over REST for a test: SeaweedFS's, and Iceberg's own, which is a program for Java."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .ports import free_port
from .s3_server import S3Server

__all__ = ["JavaCatalogue", "RestCatalogue", "WeedCatalogue", "catalogue"]

_JARS = Path(__file__).parents[1] / "iceberg" / "lib"
_PATIENCE = 120.0


class RestCatalogue:
    """A server that can be killed and started again."""

    port: int

    def properties(self, port: int | None = None) -> dict[str, str]:
        """Those of a client of the catalogue. The port is that of a proxy before it."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{port or self.port}"}

    def start(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def _wait(self, log: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/config", timeout=10).close()
            except urllib.error.HTTPError:
                return  # it asks for a token
            except OSError:
                assert process is None or process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            else:
                return


class WeedCatalogue(RestCatalogue):
    """It gives tokens for credentials, and the tables are in its storage, which is dead with it."""

    def __init__(self, folder: Path) -> None:
        self._server = S3Server(folder)
        self.port = self._server.iceberg_port
        self._has_bucket = False

    def properties(self, port: int | None = None) -> dict[str, str]:
        storage = self._server.storage
        keys = {"s3.access-key-id": storage["access_key"], "s3.secret-access-key": storage["secret_key"]}
        return {
            **super().properties(port), **keys, "warehouse": "s3://lake", "s3.region": storage["region"],
            "s3.endpoint": f"http://{storage['endpoint_override']}",
            "oauth2-server-uri": f"http://127.0.0.1:{port or self.port}/v1/oauth/tokens",
            "credential": f"{storage['access_key']}:{storage['secret_key']}",
        }  # fmt: skip

    def start(self) -> None:
        self._server.start()
        self._wait(self._server.folder / "log")
        if self._has_bucket:
            return
        subprocess.run(
            [Path(sys.executable).parent / "weed", "shell", f"-master={self._server.master}"],
            input=b"s3tables.bucket -create -name lake -account admin\nexit\n", check=True, capture_output=True,
            timeout=_PATIENCE,
        )  # fmt: skip
        self._has_bucket = True

    def kill(self) -> None:
        self._server.kill()


class JavaCatalogue(RestCatalogue):
    """It has no credentials. The tables are in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = {
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{self._folder}/catalogue.db",
            "CATALOG_WAREHOUSE": f"file://{self._folder}/lake",
            "CATALOG_REST_PORT": str(self.port),
        }
        command = ["java", "-cp", f"{_JARS}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, env={**os.environ, **options}, stdout=output, stderr=output)
        self._wait(log, self._process)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def catalogue(kind: type[RestCatalogue], folder: Path) -> Iterator[RestCatalogue]:
    server = kind(folder)  # type: ignore[call-arg]
    try:
        server.start()
        yield server
    finally:
        server.kill()
