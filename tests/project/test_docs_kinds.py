"""Each page is of one kind, which the navigation of the site tells: tutorial, how-to, runbooks, reference, explanation.

Readers work by a tutorial, a how-to and a runbook, look facts up in reference, and read an explanation to understand.
So reference and explanation give no instructions, and a tutorial, a how-to and an explanation list no names to look up.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import docs_site

ROOT = Path(__file__).parents[2]
WORDS = 55_000
"""The most that all pages may have together: what a reader has to choose from."""

KINDS = {"Tutorial", "How to", "Runbooks", "Reference", "Explanation"}
TASKS = (
    "Add", "Back up", "Configure", "Deliver", "Drop", "Forget", "Import", "Install", "Limit", "Make", "Move", "Put",
    "Query", "Read", "Remove", "Run", "Send", "Set up", "Show", "Sign", "Take", "Upgrade", "Use", "Write",
)  # fmt: skip
"""The first words of the title of a how-to. No heading of reference and explanation begins with one."""

_TASK = re.compile(rf"({'|'.join(TASKS)})\b")
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\|.*\n\|[-| :]+\|\n((?:\|.*\n)+)", re.MULTILINE)
_DEFINITIONS = re.compile(r"(?:^- \*{0,2}`[^`]+`\*{0,2}(?: \([^)]*\))?:(?:.*\n)(?:^ +.*\n)*){3,}", re.MULTILINE)
_STEP = re.compile(r"^(\d+\. .*)", re.MULTILINE)
_ADVICE = re.compile(r"(?:^|[.:] |- )(To [a-z]+ [^.:]*(?:, (?!and\b|or\b)[a-z]|:$).*)", re.MULTILINE)
_SHELL = {"sh", "console"}
_OUTPUT = {"", "json", "text"}


def pages(nav: Any, kind: str = "") -> Iterator[tuple[str, str]]:
    """Every page of the navigation with its kind, which is the name of the outermost group."""
    if isinstance(nav, str):
        yield nav, kind
    elif isinstance(nav, list):
        for each in nav:
            yield from pages(each, kind)
    else:
        for name, inner in nav.items():
            yield from pages(inner, kind or name)


NAVIGATION = dict(pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))


def prose(text: str) -> str:
    return _BLOCK.sub("", text)


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.*)", prose(text), re.MULTILINE)


def command(line: str) -> str:
    """What a line of a shell runs: a command of ingestd with its subcommands, or a program."""
    found = re.search(r"\bingestd(?: [a-z][a-z-]*(?![\w./])){1,2}", line)
    return found[0] if found else line.removeprefix("$ ").split()[0]


def instructions(text: str) -> list[str]:
    """What tells a reader to do something: tasks, steps, advice, and commands to be run one after the other."""
    found = [heading for heading in headings(text) if _TASK.match(heading)]
    found += _STEP.findall(prose(text)) + _ADVICE.findall(prose(text))
    for language, block in _BLOCK.findall(text):
        if language in _SHELL:
            lines = [line for line in block.splitlines() if re.match(r"(\$ )?[^\s#]", line)]
            shown = [line for line in lines if line.startswith("$ ")] or lines
            first = command(shown[0])
            found += [line for line in shown if not command(line).startswith(first)][:1]
    return found


def lists_to_look_up(text: str) -> list[str]:
    """Tables and lists of names of the program, such as options, columns and metrics, with their meanings."""
    tables = [table.splitlines() for table in _TABLE.findall(prose(text))]
    named = [table[0] for table in tables if 2 * sum(row.startswith("| `") for row in table) > len(table)]
    return named + [found[0] for found in _DEFINITIONS.finditer(prose(text))]


def idle_sections(text: str) -> tuple[list[str], int]:
    """The sections that have nothing to run, to copy or to do in steps, and the number of all sections."""
    marked = _BLOCK.sub(lambda block: "" if block[1] in _OUTPUT else "\n1. a block\n", text)
    sections = [section for section in re.split(r"^#+ ", marked, flags=re.MULTILINE)[1:] if section.count("\n") > 2]
    return [section.partition("\n")[0] for section in sections if not _STEP.search(section)], len(sections)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site") / "docs"
    docs_site.make_pages(made)
    return made


def mixed(kind: str, text: str) -> list[str]:
    """What does not belong on a page of this kind."""
    wrong = []
    if kind in {"Reference", "Explanation"}:
        wrong += instructions(text)
    if kind == "Explanation":
        wrong += [block for language, block in _BLOCK.findall(text) if language in _SHELL]
    if kind in {"Tutorial", "How to", "Explanation"}:
        wrong += lists_to_look_up(text)
    if kind == "How to":
        title = headings(text)[0]
        wrong += [] if _TASK.match(title) else [f"{title}: name the task"]
        idle, sections = idle_sections(text)
        wrong += idle if 2 * len(idle) > sections else []
    return wrong


def test_a_page_is_of_the_kind_that_the_navigation_tells(folder: Path) -> None:
    kinds = {page: kind for page, kind in NAVIGATION.items() if page != "index.md"}
    assert {*kinds.values()} == KINDS
    wrong = {page: mixed(kind, (folder / page).read_text()) for page, kind in kinds.items()}
    assert {page: found for page, found in wrong.items() if found} == {}


_FACTS = "| option | meaning |\n|---|---|\n| `a` | one |\n| `b` | two |\n"
_DEFINED = "- `a`: one\n- `b` (a number): two,\n  and more\n- `c`: three\n"
_RUN = "# Run it\n\n```sh\ningestd check\ningestd reload\n```\n"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("Reference", "# Keys\n\n1. Make a key.\n"),
        ("Reference", "# Keys\n\n## Make a key\n"),
        ("Reference", "# Keys\n\nA key is a text. To make one, run a command.\n"),
        ("Reference", "# Keys\n\n```sh\ningestd keys create\ningestd reload\n```\n"),
        ("Explanation", "# Keys\n\n```sh\ningestd keys list\n```\n"),
        ("Explanation", f"# Keys\n\n{_FACTS}"),
        ("How to", f"{_RUN}\n{_FACTS}"),
        ("How to", f"{_RUN}\n{_DEFINED}"),
        ("How to", "# Keys\n\n```sh\ningestd keys list\n```\n"),
        ("How to", f"{_RUN}\n## Why\n\nBecause.\n\n## What\n\nA thing.\n"),
        ("Tutorial", f"{_RUN}\n{_FACTS}"),
    ],
)  # fmt: skip
def test_a_mixed_page_is_found(kind: str, text: str) -> None:
    assert mixed(kind, text)


def test_pages_that_do_one_thing_pass() -> None:
    assert mixed("How to", _RUN) == mixed("Tutorial", _RUN) == []
    assert mixed("Reference", f"# Keys\n\n{_FACTS}\n```sh\ningestd keys list\ningestd keys list --json\n```\n") == []
    assert mixed("Explanation", "# Keys\n\nA key belongs to a shop, so that no shop reads another's events.\n") == []


def test_all_pages_together_stay_within_their_words() -> None:
    assert sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md")) <= WORDS


def test_each_kind_of_change_touches_few_places_that_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Which files to touch\n\n")[2].partition("\n## ")[0]
    kinds = page.strip().split("\n\n")
    assert len(kinds) > 8
    for kind in kinds:
        title, *lines = kind.splitlines()
        assert title.startswith("**")
        assert len(lines) <= 5, title
        for path in re.findall(r"`((?:\w+/)[\w/.-]*)`", kind):
            assert "NAME" in path or (ROOT / path).exists(), path
