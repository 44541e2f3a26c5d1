"""Every file that the docs and the pages beside the README link to exists, and so does every command that they show.

Their tables are whole.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

from tests.kernel.cli.test_command_line import CLI

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "benchmarks").glob("*.md"))]


def test_links_have_targets() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())]
    assert len(links) > len(PAGES)
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


@cache
def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_a_section_have_its_heading() -> None:
    wrong, checked = [], 0
    for page in PAGES:
        for target, heading in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", page.read_text()):
            checked += 1
            if heading not in anchors(page.parent / target if target else page):
                wrong.append((page.name, target, heading))
    assert wrong == []
    assert checked > 100


def test_every_page_is_reachable_from_the_readme() -> None:
    linked = set(re.findall(r"\((docs/[\w./-]+\.md)", (ROOT / "README.md").read_text()))
    assert linked == {str(page.relative_to(ROOT)) for page in DOCS}


def test_a_table_stands_alone_and_whole() -> None:
    wrong, checked = [], 0
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for block in re.split(r"\n\s*\n", text):
            head, *rows = [line.strip() for line in block.strip().splitlines()] or [""]
            if any(line.startswith("|") for line in (head, *rows)):
                checked += 1
                if not rows or not re.fullmatch(r"[|:-]+", rows[0]) or any(not row.startswith("|") for row in rows):
                    wrong.append((page.name, head))
    assert wrong == []  # readers get its rows as text
    assert checked > 100


def test_commands_shown_exist() -> None:
    blocks = [block for page in PAGES for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)]
    shown = [line for block in blocks for line in re.findall(r"^ingestd ([^|#>\n]+)", block, re.MULTILINE)]
    assert len(shown) > 50
    for line in shown:  # what argparse prints about a wrong one names it
        if "…" not in line and "$" not in line:
            arguments = CLI.parser.parse_args(shlex.split(re.sub(r"\bID\b", "some-id", line)))
            assert arguments.run is not None


def test_every_target_the_readme_shows_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert targets == {"run", "test", "check", "bench", "hostile", "soak", "growth"}
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
