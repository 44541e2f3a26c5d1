"""The manual pages in man/ agree with the parser, and a formatter accepts them without warnings."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from scripts.man import FOLDER, pages
from tests.kernel.cli.test_command_line import COMMANDS, PARSERS


def test_the_pages_agree_with_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    kept = {page.name: page.read_text() for page in FOLDER.iterdir()}
    assert kept == pages(), "run `make man`"
    assert {*kept} == {f"{name.replace(' ', '-')}.1" for name in PARSERS}


def test_the_page_of_a_group_says_what_it_is_for_and_lists_its_commands() -> None:
    page = (FOLDER / "ingestd-sinks.1").read_text().replace("\\-", "-")
    assert "show and control the delivery to sinks" in page
    below = [f"{name.replace(' ', '-')}(1)" for name in COMMANDS if name.startswith("ingestd sinks ")]
    assert len(below) > 5
    assert re.findall(r"ingestd-sinks\S*\(1\)", page) == below


def test_the_pages_have_the_examples_and_the_options() -> None:
    page = (FOLDER / "ingestd-events-export.1").read_text().replace("\\-", "-")
    assert 'ingestd events export --key "Order Completed" --since 1h --follow' in page
    assert r"\fB--since\fR \fI\,TIME\/\fR" in page
    assert "ingestd-events-export(1)" in (FOLDER / "ingestd.1").read_text().replace("\\-", "-")


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_a_formatter_has_no_warnings() -> None:
    for page in FOLDER.iterdir():
        done = subprocess.run(
            ["groff", "-man", "-ww", "-T", "utf8", str(page)], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        assert done.stdout
