"""Records the store of a version for the rehearsed upgrades: `tests/acceptance/test_upgrades.py` serves from it.

    python -m scripts.record_store                        the present version, before its release
    python -m scripts.record_store 0.1.0 --commit 9c1c7aa

A commit is installed in a temporary environment. Its daemon takes a small shop's events on SQLite, on Redis and on a
cluster: sessions, links, traits, orders, refunds, one of them before its order, dead letters, and a sink that is
behind. Then it stops. Its store, and what callers and sinks were told, go to `tests/data/upgrades/VERSION`.

All states before 0.2.0 have the version 0.1.0. 9c1c7aa is the last one that operators ran: the newest commit of
2026-11-27, after which the work on 0.2.0 began. `git log --before=2026-11-28 -1 --format=%h main` finds it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import hmac
import http.server
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingestd import RELEASE
from tests.support.clients import wait_until
from tests.support.ports import free_port
from tests.support.redis_server import redis_server

__all__ = ["CONFIG", "DATA", "DECLARED", "FOUND", "POISON", "SERVERS", "VISITORS", "order", "refund"]

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data" / "upgrades"

DECLARED = "declared-key-0123456789"
POISON = "poison"
"""The product that the sink crm refuses."""
VISITORS, USERS, ORDERS, REFUNDS, POISONED, TAKEN = 24, 4, 8, 3, (3, 7, 11), 20
"""`TAKEN` records are taken by the sink slow before it is out of order."""
FOUND = {
    VISITORS - 3: {"page": {"url": "https://shop.example/", "referrer": "https://www.google.com/"}},
    VISITORS - 4: {"page": {"url": "https://shop.example/?gclid=click-1"}},
}
"""The arrivals of visitors who come without a campaign."""

CONFIG = f"""\
[http]
listen = "127.0.0.1:{{http}}"
[ops]
listen = "127.0.0.1:{{ops}}"
[store]
url = "{{url}}"
[logs]
format = "text"
[plugins.keys]
declared = [{{{{ id = "{DECLARED}", kind = "public", tenant = "shop" }}}}]
[sinks.archive]
type = "jsonl"
path = "archive.jsonl"
[sinks.crm]
type = "webhook"
url = "http://127.0.0.1:{{crm}}/in"
batch = {{{{ max_events = 5, max_bytes = "1MiB", max_wait = "50ms" }}}}
retry = {{{{ attempts = 3, initial = "50ms", max = "200ms" }}}}
[sinks.slow]
type = "webhook"
url = "http://127.0.0.1:{{slow}}/in"
batch = {{{{ max_events = 7, max_bytes = "1MiB", max_wait = "50ms" }}}}
retry = {{{{ attempts = 3, initial = "50ms", max = "200ms" }}}}
"""

_CLUSTER = {"cluster-enabled": "yes", "cluster-require-full-coverage": "no"}
SERVERS: dict[str, tuple[str, dict[str, str]]] = {"redis": ("redis", {}), "cluster": ("redis+cluster", _CLUSTER)}
"""Redis, and a cluster of one node, so that its dump is one file: schemes of their URLs, and options of the server."""

Body = dict[str, Any]


def order(number: int | str, visitor: int) -> Body:
    data = {"order_id": f"o-{number}", "total": 100, "revenue": 80, "currency": "EUR"}
    return {"key": "Order Completed", "anonymousId": f"v{visitor}", "data": data}


def refund(number: int | str, visitor: int, refund_id: str, revenue: int) -> Body:
    data = {"order_id": f"o-{number}", "refund_id": refund_id, "revenue": revenue, "currency": "EUR"}
    return {"key": "Order Refunded", "anonymousId": f"v{visitor}", "data": data}


class Receiver:
    """A webhook's receiver with the records that it has taken. `answer` gives the status of some records."""

    def __init__(self, answer: Callable[[list[Any]], int]) -> None:
        records: list[Any] = []
        self.records = records
        self.answer = answer
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                some = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = receiver.answer(some)
                if status < 300:
                    records.extend(some)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:  # it would be printed
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def ids(self) -> list[str]:
        return [record["id"] for record in self.records]


class Recorded:
    """A daemon of the version, with its configuration in a folder."""

    def __init__(self, binary: Path, folder: Path, url: str) -> None:
        self.binary = binary
        self.crm = Receiver(
            lambda some: 422 if any(each.get("data", {}).get("product_id") == POISON for each in some) else 200
        )
        self.slow = Receiver(lambda _: 200 if len(self.slow.records) < TAKEN else 503)
        self.folder, self.config = folder, folder / "ingestd.toml"
        self.http, self.ops = free_port(), free_port()
        self.config.write_text(
            CONFIG.format(http=self.http, ops=self.ops, url=url, crm=self.crm.port, slow=self.slow.port)
        )

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.binary, *arguments, "--config", self.config],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def key(self, *arguments: str) -> Body:
        return dict(json.loads(self.command("keys", *arguments, "--json")))

    def post(self, path: str, body: Body, key: str, secret: str = "") -> Body:
        raw = json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        if secret:
            headers["X-Signature"] = hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/api/v1/analytics{path}", raw, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return dict(json.loads(answer.read()))

    @contextmanager
    def serving(self) -> Iterator[None]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [self.binary, "serve", "--config", self.config], stdout=log, stderr=log, cwd=self.folder
            )
            try:
                wait_until(lambda: process.poll() is not None or self._is_ready())
                if process.poll() is not None:
                    raise SystemExit((self.folder / "log").read_text())
                yield
                process.send_signal(signal.SIGTERM)
                if process.wait(60):
                    raise SystemExit((self.folder / "log").read_text())
            finally:
                process.kill()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ops}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def exported(self) -> list[Body]:
        return [json.loads(line) for line in self.command("events", "export").splitlines()]


def _told(shop: Recorded) -> Body:
    """Send the events of the shop, stop the daemon, and return what callers, operators and sinks were told."""
    crm = ("--kind", "server", "--tenant", "shop", "--app", "CRM", "--permission", "ADMIN")
    with shop.serving():
        public = shop.key("create", "--kind", "public", "--tenant", "shop")
        server, rotated = shop.key("create", *crm), shop.key("create", *crm)
        renewed = shop.key("rotate", rotated["id"], "--grace", "24h")
        revoked = shop.key("create", "--kind", "public", "--tenant", "shop")
        shop.command("keys", "revoke", revoked["id"])
        time.sleep(2.5)  # until the daemon knows the keys
        key, answers = public["id"], {}
        for each in range(VISITORS):
            body = {
                "key": "Product Viewed", "anonymousId": f"v{each}", "messageId": f"m-{each}",
                "data": {"product_id": POISON if each in POISONED else f"p{each}"},
                "context": FOUND.get(
                    each, {"campaign": {"source": f"s{each % 5}", "medium": "email", "name": f"c{each}"}}
                ),
            }  # fmt: skip
            answers[f"v{each}"] = shop.post("/track", body, key)["session"]
        for each in range(VISITORS // 2):
            traits = {"email": f"u{each % USERS}@shop.example", "n": each, "plan": "gold"}
            body = {"anonymousId": f"v{each}", "userId": f"u{each % USERS}", "traits": traits}
            shop.post("/identify/public", body, key)
        signer = (server["id"], server["secret"])
        for each in range(ORDERS):
            shop.post("/customer-events", {**order(each, each), "messageId": f"o-{each}"}, *signer)
        for each in range(REFUNDS):
            shop.post("/customer-events", refund(each, each, f"r-{each}", 30), *signer)
        shop.post("/customer-events", refund("early", VISITORS - 2, "r-early", 10), *signer)
        wanted = {"attribution": ORDERS, "attribution_reversal": REFUNDS}
        wait_until(lambda: {kind: [each["type"] for each in shop.exported()].count(kind) for kind in wanted} == wanted)
        letters = ("sinks", "dead-letters", "list", "crm", "--json")
        wait_until(
            lambda: len(shop.command(*letters).splitlines()) == len(POISONED) and len(shop.slow.records) >= TAKEN
        )
        wait_until(lambda: len(set(shop.crm.ids)) == len(shop.exported()) - len(POISONED))
        told: Body = {
            "public": key, "server": server, "rotated": rotated, "renewed": renewed, "revoked": revoked["id"],
            "sessions": answers, "records": shop.exported(),
            "deadLetters": [json.loads(line) for line in shop.command(*letters).splitlines()],
        }  # fmt: skip
    archive = (shop.folder / "archive.jsonl").read_text().splitlines()
    delivered = {"archive": [json.loads(line)["id"] for line in archive], "crm": shop.crm.ids, "slow": shop.slow.ids}
    return {**told, "delivered": delivered, "stoppedAt": int(time.time() * 1000)}


def _record(binary: Path, version: str) -> None:
    target = DATA / version
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shop = Recorded(binary, folder, "sqlite:ingestd.db")
        _write(target / "sqlite", json.dumps(_told(shop)).encode(), (folder / "ingestd.db").read_bytes())
    for kind, (scheme, options) in SERVERS.items():
        with (
            tempfile.TemporaryDirectory() as name,
            redis_server(Path(name) / kind, options) as server,
            server.client() as client,
        ):
            if kind == "cluster":
                client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
                wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
            told = _told(Recorded(binary, Path(name), f"{scheme}://127.0.0.1:{server.port}"))
            client.save()
            _write(target / kind, json.dumps(told).encode(), (server.folder / "dump.rdb").read_bytes())


def _write(stem: Path, told: bytes, store: bytes) -> None:
    for suffix, content in ((".json.gz", told), (".store.gz", store)):
        stem.with_suffix(suffix).write_bytes(gzip.compress(content, 9, mtime=0))


@contextmanager
def _installed(commit: str | None) -> Iterator[Path]:
    """The command of a commit, or that of this environment."""
    if commit is None:
        yield Path(sys.executable).with_name("ingestd")
        return
    with tempfile.TemporaryDirectory() as name:
        source, environment = Path(name) / "source", Path(name) / "environment"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", source, commit], check=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            subprocess.run([environment / "bin" / "pip", "install", "--quiet", source], check=True)
            yield environment / "bin" / "ingestd"
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", source], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", default=RELEASE)
    parser.add_argument("--commit", help="install this commit, instead of the present state")
    arguments = parser.parse_args()
    with _installed(arguments.commit) as command:
        _record(command, arguments.version)
