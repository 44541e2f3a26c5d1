"""`make docs` builds a site without a broken link, and what the tutorial says is what happens."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import docs_site
from tests.acceptance.test_demo import Demo
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the site's configuration with the pages of the site."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "zensical.toml", folder)
    docs_site.make_pages(folder / CONFIG["docs_dir"])
    return folder


def build(project: Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(each)


def test_the_navigation_names_every_page_once(project: Path) -> None:
    folder = project / CONFIG["docs_dir"]
    there = sorted(str(page.relative_to(folder)) for page in folder.rglob("*.md"))
    assert sorted(pages_of(CONFIG["nav"])) == there


def test_the_site_has_every_page_and_asks_no_other_host(project: Path) -> None:
    done = build(project)
    assert done.returncode == 0, done.stdout + done.stderr
    site = project / CONFIG["site_dir"]
    for name in pages_of(CONFIG["nav"]):
        page = (site / name).with_suffix(".html").read_text()
        loaded = re.findall(r"<(?:script|img|link rel=\"stylesheet\")[^>]* (?:src|href)=\"([^\"]+)\"", page)
        assert loaded
        assert [each for each in loaded if each.startswith(("http", "//"))] == []
    found = {each["location"] for each in json.loads((site / "search.json").read_text())["items"]}
    assert {"reference/options.html", "tutorial.html"} <= {location.partition("#")[0] for location in found}
    anchors = (site / "reference" / "commands.html").read_text()
    assert 'id="ingestd-sinks-replay"' in anchors


@pytest.mark.parametrize("link", ["nowhere.md", "sinks.md#nothing-here"])
def test_a_link_that_leads_nowhere_fails_the_build(project: Path, link: str) -> None:
    page = project / CONFIG["docs_dir"] / "scrub.md"
    before = page.read_text()
    page.write_text(f"{before}\n[astray]({link})\n")
    try:
        done = build(project)
    finally:
        page.write_text(before)
    assert done.returncode != 0
    assert "does not exist" in done.stdout + done.stderr


def test_the_page_of_options_has_every_option_with_its_default(project: Path) -> None:
    page = (project / CONFIG["docs_dir"] / "reference" / "options.md").read_text()
    conf = (ROOT / "conf" / "ingestd.toml").read_text()
    for name, value in re.findall(r"^(?:# )?(\w+) = (.+)$", conf, re.MULTILINE):
        assert f"**`{name}`** = `{value}`" in page


def test_the_page_of_data_has_every_path_of_the_operators_page(project: Path) -> None:
    page = (project / CONFIG["docs_dir"] / "reference" / "page_data.md").read_text()
    routes = "".join((ROOT / "plugins" / "console" / f"{name}_routes.py").read_text() for name in ("page", "data"))
    paths = {path.replace("\\", "") for path in re.findall(r'\(r?"(/[\w.\\-]+)[/?]*", \w+Handler', routes)}
    assert {"/status.json", "/events", "/sales.csv"} <= paths
    assert {*re.findall(r"/[\w.-]+", " ".join(re.findall(r"^## (.*)$", page, re.MULTILINE)))} == paths


def test_the_page_of_contracts_has_every_hook(project: Path) -> None:
    page = (project / CONFIG["docs_dir"] / "reference" / "contracts.md").read_text()
    hooks = re.findall(
        r"^@hookspec.*\ndef (\w+)", (ROOT / "ingestd" / "api" / "hookspecs.py").read_text(), re.MULTILINE
    )
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == hooks


def test_what_the_tutorial_says_is_what_happens(tmp_path: Path) -> None:
    first, *blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    assert first == "make run\n"
    demo = Demo(tmp_path / "demo", free_port(), free_port())
    script = "set -e\n" + "\n".join(f"{block}\necho; echo ---" for block in blocks)
    script = script.replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}").replace("curl ", "curl --no-progress-meter ")
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    environment = {**os.environ, "HOME": str(tmp_path)}
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        assert demo.stop() == 0
    assert done.returncode == 0, done.stdout + done.stderr
    _, viewed, refused, linked, ordered, shown, reloaded, delivered, _ = done.stdout.split("\n---\n")
    assert json.loads(viewed)["session"]["isNew"] is True
    assert [fault["pointer"] for fault in json.loads(refused)["errors"]] == ["/data/price"]
    assert json.loads(linked)["success"] is json.loads(ordered)["success"] is True
    assert re.search(r"newsletter", shown)
    assert "is in force" in reloaded
    assert re.search(r"^orders +jsonl +running +1 ", delivered, re.MULTILINE)
    assert '"order_id":"o-7"' in delivered
