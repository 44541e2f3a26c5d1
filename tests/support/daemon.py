"""`ingestd` in a process of its own, with a configuration and real sockets."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from .forked import INGESTD, Command, run

__all__ = ["PATIENCE", "Daemon", "Key", "Reply", "Shop", "run_ingestd", "sign"]

BASE = "/api/v1/analytics"
PATIENCE = 20.0

_ADMIN = ("--app", "CRM", "--permission", "ADMIN")


@dataclass(frozen=True)
class Reply:
    """One HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Key:
    id: str
    secret: str = ""


def sign(secret: str, body: bytes) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def run_ingestd(
    *arguments: str, config: Path | None = None, folder: Path | None = None, timeout: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, in the folder if one is given."""
    location = ["--config", str(config)] if config is not None else []
    return run([INGESTD, *arguments, *location], text=True, cwd=folder, timeout=timeout)


class Daemon:
    """A running `ingestd serve`. `log` has the lines of its log."""

    def __init__(
        self,
        config: Path,
        *,
        environment: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        command: str = INGESTD,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.log: list[str] = []
        # Not a pipe: a daemon that logs much would block until a test reads the log.
        self._stderr = TemporaryFile(buffering=0)  # noqa: SIM115 - closed at the daemon's end
        self._process = Command(
            [*prefix, command, "serve", "--config", str(config), *arguments],
            stderr=self._stderr,
            env={**os.environ, **(environment or {})},
        )
        self._taken = 0
        self._rest = b""
        try:
            self.host, port = self._wait_for_line(r'listening for events on http://([^"]*):(\d+)("|$)').group(1, 2)
            self.port = int(port)
            # The operators' listener opens first, so its line has been logged already.
            self.ops_port = int(self._wait_for_line(r'listening for operators on http://[^"]*:(\d+)("|$)')[1])
            self._wait_for_line("ready: ")
        except AssertionError:
            self._stderr.close()  # else its end would fail another test
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def _wait_for_line(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE
        while True:
            for line in self.log:
                match = re.search(pattern, line)
                if match is not None:
                    return match
            assert time.monotonic() < deadline, f"no {pattern!r} in the log:\n" + "\n".join(self.log)
            if not self.read_log(1.0) and self._process.poll() is not None:
                raise AssertionError(f"exit {self._process.returncode}:\n" + "\n".join(self.log))

    def read_log(self, patience: float = 0.0) -> bool:
        """Reads new lines of the daemon's log, and returns whether there were any."""
        deadline = time.monotonic() + patience
        while True:
            over = self._process.poll() is not None or time.monotonic() >= deadline
            written = os.fstat(self._stderr.fileno()).st_size
            content = os.pread(self._stderr.fileno(), written - self._taken, self._taken)
            if content or over:
                break
            time.sleep(0.02)
        self._taken += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        self.log += [line.decode() for line in lines]
        return bool(content)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        timeout: float = PATIENCE,
    ) -> Reply:
        """Sends one request on a new connection."""
        host, port = (self.host, self.port) if port is None else ("127.0.0.1", port)
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, key: str | None, **headers: str) -> Reply:
        """Posts a JSON body or raw bytes with a public key."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            named["Authorization"] = f"Bearer {key}"
        return self.request("POST", BASE + path, raw, named)

    def post_signed(self, body: Any, key: Key, **headers: str) -> Reply:
        """Posts to /customer-events, signed over the raw body."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.post("/customer-events", raw, key.id, **{"x_signature": sign(key.secret, raw), **headers})

    def ops(self, path: str) -> Reply:
        return self.request("GET", path, port=self.ops_port)

    def metric(self, line: str) -> float:
        """The value of one sample, named as Prometheus shows it, or 0 if it does not exist yet."""
        for shown in self.ops("/metrics").body.decode().splitlines():
            name, _, value = shown.rpartition(" ")
            if name == line:
                return float(value)
        return 0.0

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._stderr.close()

    def terminate(self) -> int:
        """Sends SIGTERM, and returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits for the end, which something else has caused, and returns the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < deadline:
            self.read_log(0.1)
        code = self._process.wait(0.1)
        self.read_log()
        self._stderr.close()
        return code

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self.kill()


def _create_key(config: Path, kind: str, tenant: str, *grants: str) -> Key:
    done = run_ingestd(
        "keys", "create", "--kind", kind, "--tenant", tenant, "--json", *grants, config=config
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    return Key(printed["id"], printed.get("secret", ""))


@cache
def _new_database(tenant: str) -> tuple[bytes, Key, Key]:
    """A database after the key commands, with its public key and its server key.

    It is made once and copied, because two commands for each of the many shops would take most of the tests' time.
    """
    with TemporaryDirectory() as folder:
        config = Path(folder) / "ingestd.toml"
        config.write_text('[store]\nurl = "sqlite:ingestd.db"\n')
        public = _create_key(config, "public", tenant)
        server = _create_key(config, "server", tenant, *_ADMIN)
        assert [file.name for file in config.parent.glob("ingestd.db-wal")] == []  # the database has no other files
        return config.with_name("ingestd.db").read_bytes(), public, server


@dataclass
class Shop:
    """A folder with a configuration, keys for one tenant, and a `jsonl` sink named archive."""

    folder: Path
    tables: dict[str, str] = field(default_factory=dict)
    """Additional TOML by section name, inserted after the section's header."""
    tenant: str = "shop"
    host: str = "127.0.0.1"
    """The address for events."""

    def __post_init__(self) -> None:
        self.config = self.folder / "ingestd.toml"
        self.archive = self.folder / "archive.jsonl"
        self.database = self.folder / "ingestd.db"
        sections = {
            "http": f'listen = "{self.host}:0"',
            "ops": 'listen = "127.0.0.1:0"',
            "store": 'url = "sqlite:ingestd.db"',
            "logs": 'format = "text"',
            "sinks.archive": 'type = "jsonl"\npath = "archive.jsonl"',
        }
        for name, lines in self.tables.items():
            sections[name] = f"{sections.get(name, '')}\n{lines}".strip()
        self.config.write_text("".join(f"[{name}]\n{lines}\n" for name, lines in sections.items()))
        content, self.public, self.server = _new_database(self.tenant)
        self.database.touch(0o600)
        self.database.write_bytes(content)

    def command(self, *arguments: str, timeout: float = PATIENCE) -> str:
        """Runs a command that must succeed, and returns its output."""
        done = run_ingestd(*arguments, config=self.config, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_done(self, *consumers: str) -> bool:
        """Whether these consumers have durably processed all records.

        The answer comes from the disk, because the metrics may be a quarter of a second old.
        """
        with self._journal() as journal:
            (last,) = journal.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
            positions = dict(journal.execute("SELECT name, position FROM cursors").fetchall())
        return all(positions.get(name, 0) >= last for name in consumers)

    def create_key(self, kind: str, tenant: str, *, grants: bool = True) -> Key:
        return _create_key(self.config, kind, tenant, *(_ADMIN if kind == "server" and grants else ()))

    @contextmanager
    def serve(self) -> Iterator[Daemon]:
        """A running daemon. At the end it is stopped with SIGTERM and must exit 0."""
        with Daemon(self.config) as daemon:
            yield daemon
            assert daemon.terminate() == 0, "\n".join(daemon.log)

    def stored(self, containing: str = "") -> list[dict[str, Any]]:
        """The journal's records with this text, read from the disk without starting a command."""
        return [json.loads(body) for body in self._bodies() if containing.encode() in body]

    def count(self) -> int:
        """The number of the journal's records, read from the disk."""
        with self._journal() as journal:
            (number,) = journal.execute("SELECT COUNT(*) FROM journal").fetchone()
        return int(number)

    def _bodies(self) -> list[bytes]:
        with self._journal() as journal:
            rows = journal.execute("SELECT CAST(body AS BLOB) FROM journal ORDER BY position").fetchall()
        return [body for (body,) in rows]

    @contextmanager
    def _journal(self) -> Iterator[sqlite3.Connection]:
        options = tomllib.loads(self.config.read_text())
        url: str = options.get("journal", {}).get("url") or options["store"]["url"]
        kind, _, path = url.partition(":")
        assert kind == "sqlite"
        with closing(sqlite3.connect(f"file:{self.folder / path}?mode=ro", uri=True)) as journal:
            yield journal

    def exported(self, *arguments: str) -> list[dict[str, Any]]:
        """The journal's records."""
        # Not `splitlines`, because it also splits at other characters.
        return [json.loads(line) for line in self.command("events", "export", *arguments).split("\n")[:-1]]

    def archived(self, containing: str = "") -> list[dict[str, Any]]:
        """The archive's records with this text. An unfinished line at the end is left out."""
        if not self.archive.exists():
            return []
        *lines, _ = self.archive.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines if containing.encode() in line]
