"""The script behind `make run`: it makes a demo configuration with keys on first use, and starts the daemon.

The next run uses the same configuration, keys and data. Delete the folder to start anew.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

INGESTD = str(Path(sys.executable).with_name("ingestd"))
BIN = shlex.quote(str(Path(INGESTD).parent))
BASE = "/api/v1/analytics"

CONFIG = """\
# Made by `make run`. Every option is explained in conf/ingestd.toml.

[http]
listen = "127.0.0.1:{port}"

[ops]
listen = "127.0.0.1:{ops_port}"

[store]
url = "sqlite:ingestd.db"

[sinks.archive]
type = "jsonl"
path = "events.jsonl"

# Files that stand for a data warehouse and a CRM system.
[sinks.warehouse]
type = "jsonl"
path = "warehouse.jsonl"
filter = {{ types = ["event", "attribution", "attribution_reversal"] }}

[sinks.crm]
type = "jsonl"
path = "crm.jsonl"
filter = {{ keys = ["Order Completed", "Order Refunded", "Order Cancelled"] }}
"""

KEYS = {
    "public": ("--kind", "public", "--tenant", "shop"),
    "server": ("--kind", "server", "--tenant", "shop", "--app", "CRM", "--permission", "ADMIN"),
    "outlet": ("--kind", "public", "--tenant", "outlet"),
}


class Example(NamedTuple):
    """A request to show and send. A server key signs it."""

    title: str
    path: str
    key: str
    body: dict[str, Any]


EXAMPLES = [
    Example("Track an event", "/track", "public", {
        "key": "Product Viewed", "anonymousId": "visitor-1", "data": {"product_id": "p-1", "price": 19.9},
        "context": {"campaign": {"source": "newsletter", "medium": "email", "name": "autumn"}},
    }),
    Example("Identify the visitor", "/identify/public", "public", {
        "anonymousId": "visitor-1", "userId": "u-17", "traits": {"email": "ann@example.com"},
    }),
    Example("Identify a visitor from the backend, signed", "/identify", "server", {
        "anonymousId": "visitor-1", "userId": "u-17", "traits": {"plan": "gold"},
    }),
    Example("Track an order from the backend, signed", "/customer-events", "server", {
        "key": "Order Completed", "anonymousId": "visitor-1",
        "data": {"order_id": "o-1001", "total": 19.9, "currency": "EUR", "products": [{"product_id": "p-1"}]},
    }),
]  # fmt: skip


class Demo(NamedTuple):
    """The demo in a folder: its addresses, and its keys by name."""

    config: Path
    address: str
    ops_address: str
    keys: dict[str, dict[str, str]]

    @property
    def variables(self) -> str:
        """The variables of a shell in which commands find the demo."""
        return f"INGESTD_CONFIG={shlex.quote(str(self.config.resolve()))} KEY={self.keys['public']['id']}"

    def headers(self, key: str, body: bytes) -> dict[str, str]:
        """The credentials for a request with this body."""
        secret = self.keys[key].get("secret")
        signature = {} if secret is None else {"x-signature": sign(secret, body)}
        return {"authorization": f"Bearer {self.keys[key]['id']}", **signature}


def sign(secret: str, body: bytes) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def read_demo(folder: Path) -> Demo:
    """Raises `FileNotFoundError` if `make run` has not made the demo."""
    config = folder / "ingestd.toml"
    options = tomllib.loads(config.read_text())
    keys = json.loads((folder / "keys.json").read_text())
    return Demo(config, options["http"]["listen"], options["ops"]["listen"], keys)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the demo's folder and ports."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ops-port", type=int, required=True)
    return parser


def main() -> None:
    arguments = make_parser(__doc__).parse_args()
    make(arguments.folder, arguments.port, arguments.ops_port)
    demo = read_demo(arguments.folder)
    show(demo)
    if (demo.address, demo.ops_address) != (f"127.0.0.1:{arguments.port}", f"127.0.0.1:{arguments.ops_port}"):
        sys.stdout.write(f"{demo.config} sets the addresses: change them there.\n\n")
    sys.stdout.flush()
    os.execv(INGESTD, [INGESTD, "serve", "--config", str(demo.config)])  # noqa: S606 - this process becomes the daemon


def make(folder: Path, port: int, ops_port: int) -> None:
    """Make the parts of the demo that are missing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config, keys_file = folder / "ingestd.toml", folder / "keys.json"
    if not config.exists():
        config.write_text(CONFIG.format(port=port, ops_port=ops_port))
    keys = json.loads(keys_file.read_text()) if keys_file.exists() else {}
    missing = {name: create_key(config, *options) for name, options in KEYS.items() if name not in keys}
    if missing:
        keys_file.touch(mode=0o600)
        keys_file.write_text(json.dumps(keys | missing, indent=2))


def create_key(config: Path, *options: str) -> dict[str, str]:
    command = [INGESTD, "keys", "create", "--json", "--config", str(config), *options]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout  # noqa: S603 - the command is ingestd
    key: dict[str, str] = json.loads(printed)
    return key


def show(demo: Demo) -> None:
    """Print the page's address, and curl commands that work when pasted: each signature fits exactly its body."""
    lines = [
        f"Watch it in a browser:  http://{demo.ops_address}/",
        "Send shop events:       make demo-traffic   (in another terminal)",
        "Stop with Ctrl-C.",
        "",
    ]
    for title, path, key, body in EXAMPLES:
        text = json.dumps(body)
        headers = " ".join(f"-H '{name}: {value}'" for name, value in demo.headers(key, text.encode()).items())
        lines += [f"{title}:", f"  curl -i http://{demo.address}{BASE}{path} {headers} -d '{text}'", ""]
    lines += [
        "For the commands of the README, in another terminal:",
        f"  export PATH={BIN}:$PATH {demo.variables}",
        "",
        f"Metrics and health:     http://{demo.ops_address}/metrics  /livez  /readyz",
        "",
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
