"""The package of the browser client: its files are fresh, npm packs them, and TypeScript names a wrong field."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from scripts import browser_client

MODULES = Path(__file__).parent / "node_modules"
PATIENCE = 120.0
"""Seconds, since the compiler needs much CPU time, and the machine may be busy."""
RIGHT = """
import { alias, anonymousId, consent, flush, group, identify, init } from '@ingestd/browser'
import { page, ready, register, reset, track } from '@ingestd/browser'
init({ host: 'h', key: 'k', before_send: (event) => (event.key === 'x' ? null : event), secrets: ['token'] })
init({ host: 'h', key: 'k', before_send(event) { event.context.own = 1 } })
track('Order Completed', { order_id: 'o', revenue: 1, own: 2, products: [{ price: 1 }] }, { dispatchId: 'm' })
track('order_completed', { order_id: 5 }); track('Own Key', { a: 1 }); track('Page View')
const name: string = 'any'; track(name, { b: 2 })
page(); page('Home'); page('Shop', 'Home', { a: 1 }); page({ a: 1 })
identify({ email: 'x' }); identify('u', { a: 1 }); identify(null, { a: 1 }); identify(7)
alias('u', 'visitor'); group('g', { a: 1 }); register({ a: 1 }); ready(() => flush()); consent(true); reset()
const id: string | undefined = anonymousId()
"""
WRONG = {
    "track('Order Completed', { order_id: 17 })": "Type 'number' is not assignable to type 'string'",
    "track('Order Completed', { products: [{ price: '1' }] })": "Type 'string' is not assignable to type 'number'",
    "track('Product Viewed', { name: ['x'] })": "Type 'string[]' is not assignable to type 'string'",
    "init({ host: 'h', key: 'k', beforeConsent: 'never' })": '"never"\' is not assignable to type',
    "page(7)": "No overload matches this call",
}


def test_the_files_are_made_from_the_sources() -> None:
    for name, text in browser_client.texts().items():
        assert (browser_client.FOLDER / name).read_text() == text, "run `make browser-client`"


def test_npm_packs_a_module_a_classic_script_the_snippet_and_the_types(tmp_path: Path) -> None:
    command: list[str | Path] = ["npm", "pack", "--json", "--pack-destination", tmp_path, browser_client.FOLDER]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    (packed,) = tmp_path.iterdir()
    subprocess.run(["tar", "--extract", "--file", packed, "--directory", tmp_path], check=True)
    files = {path.name for path in (tmp_path / "package").iterdir()}
    assert files == {
        "package.json", "ingestd.js", "ingestd.classic.js", "snippet.html", "ingestd.d.ts", "events.d.ts",
    }  # fmt: skip
    (tmp_path / "node_modules" / "@ingestd").mkdir(parents=True)
    (tmp_path / "package").rename(tmp_path / "node_modules" / "@ingestd" / "browser")
    program = (
        "import * as client from '@ingestd/browser'; client.page(); client.init({ host: 'h', key: 'k' }); client.page()"
    )
    program += "; console.log(Object.keys(client).length, client.anonymousId())"
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("12 undefined\n", "")  # without a browser it is harmless
    classic = tmp_path / "node_modules" / "@ingestd" / "browser" / "ingestd.classic.js"
    subprocess.run(["node", "--check", classic], check=True, capture_output=True, timeout=PATIENCE)


@pytest.mark.parametrize("version", [5, 7])
def test_the_compiler_takes_what_is_right_and_names_a_wrong_field(version: int, tmp_path: Path) -> None:
    (tmp_path / "node_modules" / "@ingestd").mkdir(parents=True)
    (tmp_path / "node_modules" / "@ingestd" / "browser").symlink_to(browser_client.FOLDER)
    (tmp_path / "right.ts").write_text(RIGHT)
    lines = ["import { init, page, track } from '@ingestd/browser'", *WRONG]
    (tmp_path / "wrong.ts").write_text("\n".join(lines))
    options = {
        "strict": True, "noEmit": True, "types": [], "module": "esnext", "moduleResolution": "bundler",
        "target": "es2022",
    }  # fmt: skip
    config = {"compilerOptions": options, "files": ["right.ts", "wrong.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    command: list[str | Path] = [
        "node",
        MODULES / f"typescript{version}" / "bin" / "tsc",
        "--pretty",
        "false",
        "-p",
        tmp_path,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    found = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert len(found) == len(WRONG), done.stdout
    for number, (line, message) in enumerate(zip(found, WRONG.values(), strict=True), 2):
        assert line.startswith(f"wrong.ts({number},")
        assert message in line
