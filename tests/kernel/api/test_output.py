"""Text for people in any encoding: missing characters are replaced, and columns stay aligned."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api.output import write_result
from ingestd.support.streams import ALIKE, ESCAPED
from ingestd.support.terminal import display_width, printable

OWN_SIGNS = "█░→…“”\N{RIGHT SINGLE QUOTATION MARK}—"
ENCODINGS = ["ascii", "iso8859-1", "iso8859-15", "cp1252", "cp437", "koi8-r", "utf-8"]
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text("█░→…“”Größe日本🎄e\u0301")


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("██░ → “a”…", "ascii", '##. > "a"~'),
        ("██░ → “a”…", "iso8859-1", '##. > "a"~'),
        ("██░ → “a”…", "cp1252", "##. > “a”…"),
        ("██░ → “a”…", "utf-8", "██░ → “a”…"),
        ("Größe", "ascii", "Gr??e"),
        ("Größe", "iso8859-1", "Größe"),
        ("日本", "iso8859-1", "????"),
        ("e\u0301", "ascii", "e"),
        ("\ud800", "utf-8", "?"),
    ],
)
def test_characters_missing_in_an_encoding_become_similar_ones(text: str, encoding: str, shown: str) -> None:
    assert text.encode(encoding, ALIKE).decode(encoding) == shown


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(text=TEXT)
def test_any_text_can_be_written_and_stays_as_wide(encoding: str, text: str) -> None:
    text = printable(text)
    shown = text.encode(encoding, ALIKE).decode(encoding)
    assert display_width(shown) == display_width(text)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(text=TEXT)
@example(text=OWN_SIGNS)
def test_a_log_loses_no_character(encoding: str, text: str) -> None:
    """Only the signs that ingestd's own text is written with become others that look alike."""
    shown = text.encode(encoding, ESCAPED).decode(encoding)
    for letter in text:
        assert letter in shown or letter in OWN_SIGNS or f"{ord(letter):x}" in shown


@pytest.mark.parametrize("as_json", [True, False])
def test_a_result_is_json_in_ascii_or_lines_for_people(
    *, as_json: bool, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    values = [{"text": "\x1b[2J日本\n"}, 7]
    write_result(*values, lines=["Größe"], as_json=as_json)
    printed = capfdbinary.readouterr().out.decode()
    if not as_json:
        assert printed == "Größe\n"
        return
    assert printed.isascii()
    assert [json.loads(line) for line in printed.splitlines()] == values
    assert printed.replace("\n", "").isprintable()


STREAMS = """
import os, sys
from ingestd.api.output import write, write_data
from ingestd.support.streams import prepare_streams
prepare_streams()
opened = os.open(os.devnull, os.O_RDONLY)
assert opened > 2, opened
assert sys.stdin.read() == ""
write(["Größe"])
write_data(["Größe"])
sys.stderr.write("Größe")
"""


@pytest.mark.parametrize("closed", ["", "<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_stream_that_is_closed(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", STREAMS],
        stdin=subprocess.DEVNULL, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "iso8859-1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == (b"" if " >&-" in f" {closed}" else "Größe\n".encode("latin-1") + "Größe\n".encode())
    assert done.stderr == (b"" if "2>&-" in closed else "Größe".encode("latin-1"))
