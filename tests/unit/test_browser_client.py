"""The files of the browser client: its size, its versions, its types, and the names in its documentation."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from ingestd import __version__
from scripts import browser_types

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "clients" / "browser"
CODE = (FOLDER / "ingestd.js").read_text()
TYPES = (FOLDER / "ingestd.d.ts").read_text()
DOCS = (ROOT / "docs" / "browser.md").read_text()


def test_the_client_has_at_most_four_kilobytes() -> None:
    assert len(gzip.compress(CODE.encode())) <= 4000  # bytes


def test_versions_are_those_of_ingestd() -> None:
    assert re.findall(r"version: '([^']*)'", CODE) == [__version__]
    assert json.loads((FOLDER / "package.json").read_text())["version"] == __version__


def test_the_package_has_its_files() -> None:
    package = json.loads((FOLDER / "package.json").read_text())
    named = {package["main"], package["types"], *package["exports"]["."].values()}
    assert {name.removeprefix("./") for name in named} <= {*package["files"]}
    assert {*package["files"]} == {path.name for path in FOLDER.iterdir() if path.suffix in {".js", ".ts"}}


def test_the_types_of_events_are_made_from_the_schemas() -> None:
    assert browser_types.FILE.read_text() == browser_types.text(), "run `make browser-types`"


def test_the_types_and_the_documentation_have_every_function_and_option() -> None:
    functions = re.findall(r"^export const (\w+) = ", CODE, re.MULTILINE)
    assert functions == ["init", "track", "page", "identify", "reset", "consent"]
    assert {*re.findall(r"^export function (\w+)", TYPES, re.MULTILINE)} == {*functions}
    table = DOCS.partition("## Functions")[2].partition("## Options")[0]
    assert {*re.findall(r"`(\w+)\(", table)} == {*functions}
    options = re.search(r"interface Options \{(.*?)\n\}", TYPES, re.DOTALL)
    assert options is not None
    names = re.findall(r"^  (\w+)\??: ", options[1], re.MULTILINE)
    documented = DOCS.partition("## Options")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\w+)` ", documented, re.MULTILINE) == names
    used = {*re.findall(r"options\??\.(\w+)", CODE)}
    assert used == {*names}
