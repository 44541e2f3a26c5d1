"""docs/monitoring.md has a section for each alert, and the site a row, and no others. Another page lists the files."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import docs_site

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
SETUP = (ROOT / "docs" / "setting-up-monitoring.md").read_text()
FOLDER = ROOT / "conf" / "prometheus"
ALERT = re.compile(r"- alert: (\w+)\n.*?severity: (\w+)\n.*?runbook: (\S+)\n", re.DOTALL)


def alerts() -> list[tuple[str, str, str]]:
    """Name, severity and runbook of each alert, in the order of the file."""
    text = (FOLDER / "ingestd.alerts.yml").read_text()
    found = ALERT.findall(text)
    assert len(found) == text.count("- alert: ") > 0
    return found


def test_every_alert_has_a_row_with_its_severity_and_every_row_an_alert() -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\(\.\./monitoring\.md#(\w+)\) \| (\w+) \| (?:always|when \w[^|]*[\w`]) \| (?:\d+[mh])? \|$",
        docs_site.alerts(),
        re.MULTILINE,
    )
    assert rows == [(name, name.lower(), severity) for name, severity, _ in alerts()]


def test_every_alert_has_a_section_with_what_to_do_and_every_section_an_alert() -> None:
    sections = re.findall(r"^### (\w+)\n\n(.)", PAGE, re.MULTILINE)
    assert [name for name, _ in sections] == [name for name, _, _ in alerts()]


def test_every_alert_points_to_its_section() -> None:
    assert [page for _, _, page in alerts()] == [f"docs/monitoring.md#{name.lower()}" for name, _, _ in alerts()]


def test_every_file_is_listed_and_every_file_listed_is_there() -> None:
    rows = re.findall(r" \| (`[^|]*) \|$", SETUP, re.MULTILINE)
    listed = {file for row in rows for file in re.findall(r"`([^`]+)`", row)}
    assert listed == {path.name for path in FOLDER.iterdir()}


def test_every_law_is_documented() -> None:
    laws = set(re.findall(r"^ +law: (.*)$", (FOLDER / "ingestd.recording.yml").read_text(), re.MULTILINE))
    assert set(re.findall(r"^\| `(\w+ is \w+)` \|", PAGE, re.MULTILINE)) == laws


def test_links_lead_to_headings() -> None:
    for page, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", PAGE):
        text = (ROOT / "docs" / page).read_text() if page else PAGE
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor
