"""The package of the client for Node.js: npm packs what it imports, and TypeScript names a wrong field."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.daemon import PATIENCE

MODULES = Path(__file__).parent / "node_modules"
PACKAGE = Path(__file__).parents[2] / "clients" / "node"
RIGHT = """
import { Client, KeyRefused, QueueFull } from '@ingestd/node'
const client = new Client({ host: 'h', key: 'k', secret: 's', tenant: 't', onRefused: (event) => console.log(event) })
const id: string = client.track('Order Completed', { order_id: 'o', revenue: 1, own: 2 }, { timestamp: new Date() })
client.track('Own Key', { a: 1 }); client.track('Page View'); client.identify(7, { plan: 'x' }, { anonymousId: null })
const sent: Promise<boolean> = client.flush(); client.close()
const errors: Error[] = [new QueueFull(), new KeyRefused()]
"""
WRONG = "client.track('Order Completed', { order_id: 17 })"


def test_npm_packs_what_the_client_imports(tmp_path: Path) -> None:
    command: list[str | Path] = ["npm", "pack", "--json", "--pack-destination", tmp_path, PACKAGE]
    done = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    (packed,) = json.loads(done.stdout)
    assert {file["path"] for file in packed["files"]} == {path.name for path in PACKAGE.iterdir()}


def test_the_compiler_takes_what_is_right_and_names_a_wrong_field(tmp_path: Path) -> None:
    (tmp_path / "node_modules" / "@ingestd").mkdir(parents=True)
    (tmp_path / "node_modules" / "@ingestd" / "node").symlink_to(PACKAGE)
    (tmp_path / "right.ts").write_text(f"{RIGHT}{WRONG}\n")
    options = {
        "strict": True, "noEmit": True, "types": [], "module": "esnext", "moduleResolution": "bundler",
        "target": "es2022",
    }  # fmt: skip
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["right.ts"]}))
    command: list[str | Path] = ["node", MODULES / "typescript7" / "bin" / "tsc", "--pretty", "false", "-p", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    found = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert len(found) == 1, done.stdout
    assert found[0].startswith(f"right.ts({RIGHT.count(chr(10)) + 1},")
