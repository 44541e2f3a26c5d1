"""Writes the browser client's files from clients/browser/src; `make browser-client` runs it.

esbuild joins the modules, and terser makes them small. Both come with `npm ci` in tests/sdks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "clients" / "browser"
_PROGRAMS = ROOT / "tests" / "sdks" / "node_modules" / ".bin"
_JOIN = ("esbuild", "--bundle", "--target=es2021", "--log-level=warning")
_COMPRESS = "passes=3,ecma=2020,unsafe_arrows,pure_getters,hoist_funs,inline=1,conditionals=false,unsafe_comps"
_SHRINK = (
    "terser", "--module", "--mangle", "--compress", _COMPRESS,
    "--mangle-props", "regex=/^(granted|refused|batch|next)$/",  # members of objects that stay in the client
)  # fmt: skip


def texts() -> Mapping[str, str]:
    """The content of each file by its name: a module, and a classic script that sets `window.ingestd`."""
    return {
        "ingestd.js": _run(*_SHRINK, text=_run(*_JOIN, "--format=esm", "index.js")),
        "ingestd.classic.js": _run(*_SHRINK, text=_run(*_JOIN, "--format=iife", "classic.js")),
    }


def _run(program: str, *arguments: str, text: str = "") -> str:
    command: list[str | Path] = [_PROGRAMS / program, *arguments]
    return subprocess.run(command, cwd=FOLDER / "src", input=text, check=True, capture_output=True, text=True).stdout  # noqa: S603 - programs of the lock file


if __name__ == "__main__":
    for name, content in texts().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
        sys.stdout.write(f"{FOLDER / name}\n")
