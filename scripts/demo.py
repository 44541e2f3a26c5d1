"""What `make run` does: a demo configuration with keys on first use, then the daemon.

Run again, it keeps configuration, keys and data. Delete the folder to begin anew.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import subprocess
import sys
from pathlib import Path

INGESTD = str(Path(sys.executable).with_name("ingestd"))

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
"""

TRACK = {"key": "Product Viewed", "anonymousId": "visitor-1", "data": {"product_id": "p-1", "price": 19.9}}
IDENTIFY = {"anonymousId": "visitor-1", "userId": "user-1", "traits": {"email": "ann@example.com"}}
ORDER = {
    "key": "Order Completed",
    "anonymousId": "visitor-1",
    "data": {"order_id": "o-1", "total": 19.9, "currency": "EUR", "products": [{"product_id": "p-1", "quantity": 1}]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ops-port", type=int, required=True)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config, keys_file = folder / "ingestd.toml", folder / "keys.json"
    if not config.exists():
        config.write_text(CONFIG.format(port=arguments.port, ops_port=arguments.ops_port))
    if not keys_file.exists():
        keys = {
            "public": create_key(config, "--kind", "public"),
            "server": create_key(config, "--kind", "server", "--app", "CRM", "--permission", "ADMIN"),
        }
        keys_file.touch(mode=0o600)
        keys_file.write_text(json.dumps(keys, indent=2))
    show(json.loads(keys_file.read_text()), arguments.port, arguments.ops_port, config)
    os.execv(INGESTD, [INGESTD, "serve", "--config", str(config)])  # noqa: S606 - it becomes the daemon


def create_key(config: Path, *options: str) -> dict[str, str]:
    command = [INGESTD, "keys", "create", "--tenant", "demo", "--json", "--config", str(config), *options]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout  # noqa: S603 - our own command
    key: dict[str, str] = json.loads(printed)
    return key


def show(keys: dict[str, dict[str, str]], port: int, ops_port: int, config: Path) -> None:
    """Print curl lines that work when pasted; the signature is of exactly the body shown."""
    base = f"http://127.0.0.1:{port}/api/v1/analytics"
    public, server = keys["public"]["id"], keys["server"]
    order = json.dumps(ORDER)
    signature = hmac.new(server["secret"].encode(), order.encode(), hashlib.sha256).hexdigest()
    sys.stdout.write(
        f"""
Track an event:
  curl -i {base}/track -H 'authorization: Bearer {public}' -d '{json.dumps(TRACK)}'

Identify the visitor:
  curl -i {base}/identify/public -H 'authorization: Bearer {public}' -d '{json.dumps(IDENTIFY)}'

Track an order from the backend, signed:
  curl -i {base}/customer-events -H 'authorization: Bearer {server["id"]}' -H 'x-signature: {signature}' -d '{order}'

See what is stored:    {INGESTD} events export --config {config}
Metrics and health:    http://127.0.0.1:{ops_port}/metrics  /livez  /readyz
Stop with Ctrl-C.

"""
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
