"""The files of the operators' page: an unchanged library, and no content from other hosts."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import resources

import pytest

from ingestd.plugins.console.dashboard.page import SCRIPTS, VIEWS, page

FOLDER = resources.files("ingestd.plugins.console.dashboard.page")
ORIGIN = json.loads((FOLDER / "uplot" / "uplot.json").read_text())


def test_the_library_is_unchanged() -> None:
    files = {file.name: file.read_bytes() for file in (FOLDER / "uplot").iterdir() if file.name != "uplot.json"}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == ORIGIN["sha256"]
    assert f"(v{ORIGIN['version']})".encode() in files["uPlot.iife.min.js"]
    assert ORIGIN["package"].endswith(f"-{ORIGIN['version']}.tgz")


def test_its_licence_comes_with_it() -> None:
    assert ORIGIN["license"] == "MIT"
    assert "The MIT License" in (FOLDER / "uplot" / "LICENSE.txt").read_text()


def test_the_page_contains_all_its_files() -> None:
    html = page().html.decode()
    for file in ("page.css", "uplot/uPlot.min.css", *SCRIPTS, *VIEWS):
        text = (FOLDER / file).read_text()
        assert html.count(text) == 1
        assert not re.search("</(script|style)", text)
    assert not re.search("<!--", html)
    own = {file.name for file in FOLDER.iterdir() if file.name.endswith((".html", ".js", ".css"))}
    assert own == {"page.html", "page.css", *VIEWS, *(file for file in SCRIPTS if "/" not in file)}


@pytest.mark.parametrize("file", ["page.html", "page.css", *VIEWS, *(file for file in SCRIPTS if "/" not in file)])
def test_nothing_of_it_writes_html_or_runs_text(file: str) -> None:
    text = (FOLDER / file).read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\bstyle=|\son\w+=", text
    )


def test_it_is_small() -> None:
    assert len(page().packed) < 56_000
