"""A real PostgreSQL server for a test: on a free port, with separate data. It is killed at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .ports import free_port

__all__ = ["PostgresServer", "postgres_server"]

_NONE: Mapping[str, str] = MappingProxyType({})
_PATIENCE = 30.0
_TRUSTED = "127.0.0.2"
"""From here, the superuser needs no password."""


class PostgresServer:
    """A server. It refuses root, so root runs it as nobody. `options` are those of postgresql.conf.

    The system keeps written data after a kill, so fsync would only cost time.
    """

    user = "postgres"
    password = "correct horse/battery:staple"

    def __init__(self, folder: Path, options: Mapping[str, str] = _NONE) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self.options = {"fsync": "off", "max_connections": "30", **options}
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.own(folder)
        secret = folder / "password"
        secret.write_text(self.password)
        self.own(secret)
        subprocess.run(
            [_program("initdb"), "--no-sync", "--pgdata", str(self.data), "--encoding", "UTF8", "--locale", "C",
             "--username", self.user, "--auth", "scram-sha-256", "--pwfile", str(secret)],
            check=True, capture_output=True, cwd=folder, **self._as,
        )  # fmt: skip
        # A check of the password takes half of the time of a short psql.
        logins = self.data / "pg_hba.conf"
        logins.write_text(f"host all {self.user} {_TRUSTED}/32 trust\n{logins.read_text()}")

    def own(self, path: Path) -> None:
        """Makes the server's user the owner of a file of the test."""
        if self._as:
            os.chown(path, self._as["user"], self._as["group"])

    def url(self, user: str = user, password: str = password, *, database: str = "postgres", more: str = "") -> str:
        quoted = password.translate({ord(each): f"%{ord(each):02X}" for each in " /:@?#%"})
        return f"postgresql://{user}:{quoted}@127.0.0.1:{self.port}/{database}{more}"

    def sql(self, commands: str, *, schema: str = "public") -> list[str]:
        """The output of psql as the superuser: a line for each row, with | between columns."""
        done = subprocess.run(
            [_program("psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1",
             "--host", _TRUSTED, "--port", str(self.port), "--username", self.user, "--dbname", "postgres"],
            input=commands, capture_output=True, text=True, check=False, cwd=self.folder,
            env={**os.environ, "PGPASSWORD": self.password, "PGCONNECT_TIMEOUT": "5",
                 "PGOPTIONS": f"--search_path={schema}"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:-1]  # not `splitlines`, because it also splits at other characters

    def start(self) -> None:
        options = [f"--{name}={value}" for name, value in self.options.items()]
        deadline = time.monotonic() + _PATIENCE
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [_program("postgres"), "-D", str(self.data), "-p", str(self.port), "-h", f"127.0.0.1,{_TRUSTED}",
                     "-k", "", *options],
                    stdout=log, stderr=log, cwd=self.folder, **self._as,
                )  # fmt: skip
            # If children of a killed server still run, the new server ends at once and is started again.
            while self._process.poll() is None:
                if self._answers():
                    return
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.02)
            assert time.monotonic() < deadline, (self.folder / "log").read_text()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            self.sql("SELECT 1")
        except (OSError, AssertionError):
            return False
        return True

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stops the server like a restart: sessions get a message and are closed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """Ends the server and all its children at once, because the folder is removed afterwards."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(_PATIENCE)


def _program(name: str) -> str:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    assert found is not None, f"PostgreSQL's {name} is not installed: make test does it"
    return found


@contextmanager
def postgres_server(options: Mapping[str, str] = _NONE) -> Iterator[PostgresServer]:
    # Not below a test's folder, because only the user of the test can read that one.
    with tempfile.TemporaryDirectory(prefix="ingestd-postgres-") as folder:
        server = PostgresServer(Path(folder), options)
        try:
            server.start()
            yield server
        finally:
            server.end()
