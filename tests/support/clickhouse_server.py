"""A real ClickHouse server for a test: on a free port, with separate data. It is killed at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from .disks import small_disk
from .ports import free_port

__all__ = ["ClickHouseServer", "clickhouse_server"]

_PATIENCE = 30.0
_CONFIG = """<yandex>
<logger><level>warning</level><log>{folder}/log</log><errorlog>{folder}/errors</errorlog></logger>
<http_port>{port}</http_port><tcp_port>{native}</tcp_port><listen_host>127.0.0.1</listen_host>
<path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path><format_schema_path>{folder}/</format_schema_path>
<users_config>users.xml</users_config><default_profile>default</default_profile>
<default_database>default</default_database><mark_cache_size>50000000</mark_cache_size>
<timezone>Asia/Tokyo</timezone>{more}
</yandex>"""
_USERS = """<yandex>
<profiles><default>{settings}</default><readonly><readonly>1</readonly></readonly></profiles>
<users><default><password>{password}</password>{rest}</default>
<reader><password>{password}</password><networks><ip>::/0</ip></networks><profile>readonly</profile>
<quota>default</quota></reader></users>
<quotas><default>{quota}</default></quotas></yandex>"""
_REST = "<networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>"


class ClickHouseServer:
    """A server with the user `default`, who may do anything, and `reader`, who may only read.

    Its time zone is not UTC, so that a test finds times without a zone.
    """

    user = "default"
    password = "correct/horse:battery@staple"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.native, self.tls_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir()
        self.configure()

    def configure(self, *, settings: str = "", quota: str = "", tls: bool = False) -> None:
        """`settings` are elements of the profile of all users, and `quota` are their limits for an hour.

        The server reads them anew within some seconds.
        """
        more = ""
        if tls:
            folder = self.folder
            more = (
                f"<https_port>{self.tls_port}</https_port><openSSL><server><certificateFile>{folder}/server.crt"
                f"</certificateFile><privateKeyFile>{folder}/server.key</privateKeyFile>"
                "<verificationMode>none</verificationMode></server></openSSL>"
            )
        config = _CONFIG.format(folder=self.folder, port=self.port, native=self.native, more=more)
        (self.folder / "config.xml").write_text(config)
        limits = f"<interval><duration>3600</duration>{quota}</interval>" if quota else ""
        users = _USERS.format(settings=settings, quota=limits, password=escape(self.password), rest=_REST)
        (self.folder / "users.xml").write_text(users)

    def sql(self, query: str) -> str:
        """The output of a query."""
        credentials = b64encode(f"{self.user}:{self.password}".encode()).decode()
        request = Request(f"{self.url}/", query.encode(), {"Authorization": f"Basic {credentials}"})
        try:
            with urlopen(request, timeout=_PATIENCE) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def rows(self, query: str) -> list[Any]:
        return [json.loads(line) for line in self.sql(f"{query} FORMAT JSONEachRow").split("\n")[:-1]]

    def start(self, query: str | None = "SELECT 1") -> None:
        """Start, and wait until the server answers this query, or until it listens."""
        deadline = time.monotonic() + _PATIENCE
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [_program(), f"--config-file={self.folder}/config.xml"], stdout=output, stderr=output, cwd=self.folder
            )
        while not self._answers(query):
            assert self._process.poll() is None, self.messages()
            assert time.monotonic() < deadline, self.messages()
            time.sleep(0.02)

    def _answers(self, query: str | None) -> bool:
        try:
            if query is None:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            else:
                self.sql(query)
        except OSError:
            return False
        return True

    def messages(self) -> str:
        return "".join((self.folder / name).read_text() for name in ("output", "log") if (self.folder / name).exists())

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(_PATIENCE)

    def hold(self) -> None:
        """The server does not answer until it is released."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def release(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _program() -> str:
    found = shutil.which("clickhouse-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert found is not None, "clickhouse-server is not installed: make test does it"
    return found


@contextmanager
def clickhouse_server(disk_megabytes: int | None = None) -> Iterator[ClickHouseServer]:
    """`disk_megabytes`: the data get a separate disk of this size. The test is skipped if there can be none."""
    with tempfile.TemporaryDirectory(prefix="ingestd-clickhouse-") as folder, ExitStack() as stack:
        server = ClickHouseServer(Path(folder))
        if disk_megabytes is not None:
            stack.enter_context(small_disk(Path(folder) / "data", megabytes=disk_megabytes))
        try:
            server.start()
            yield server
        finally:
            server.kill()
