"""The changelog by version: the newest one is that of the program, and what an operator must do can be found."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from ingestd import RELEASE

TEXT = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
HEADINGS = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
INTRODUCTION, _, ENTRIES = TEXT.partition("\n## ")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_each_version_has_its_date_and_they_go_back_in_time() -> None:
    assert HEADINGS[0] == "Unreleased"
    versions = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) — (\d{4}-\d\d-\d\d)", heading) for heading in HEADINGS[1:]]
    assert all(versions), HEADINGS
    numbers = [tuple(map(int, match.groups()[:3])) for match in versions if match]
    dates = [datetime.date.fromisoformat(match[4]) for match in versions if match]
    assert numbers == sorted(set(numbers), reverse=True)
    assert dates == sorted(dates, reverse=True)
    assert ".".join(map(str, numbers[0])) == RELEASE


def test_entries_stand_in_sections_of_known_kinds() -> None:
    for version in TEXT.split("\n## ")[1:]:
        kinds = re.findall(r"^### (.+)$", version, re.MULTILINE)
        assert set(kinds) <= KINDS
        assert len(kinds) == len(set(kinds))
        assert "\n- " not in version.partition("\n### ")[0], "an entry stands outside of a section"


@pytest.mark.parametrize("mark", re.findall(r"(?i)\*{1,2}act\b[^\n]*", ENTRIES))
def test_what_an_operator_must_do_is_marked_alike(mark: str) -> None:
    assert re.match(r"\*\*Act:\*\* [A-Z][a-z]+ ", mark), "**Act:** and a sentence that says what to do"


def test_the_mark_is_explained_before_the_versions() -> None:
    assert "**Act:**" in INTRODUCTION
