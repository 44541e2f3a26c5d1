"""Nothing that others can name changes unnoticed: tests/data/surface.txt agrees with the code."""

from __future__ import annotations

from scripts import surface


def test_the_surface_is_the_one_that_is_written_down() -> None:
    written = surface.FILE.read_text(encoding="utf-8").splitlines()
    assert surface.lines() == written, "run `make surface`, and name each difference in CHANGELOG.md"


def test_each_kind_of_line_is_there() -> None:
    kinds = {line.split()[0] for line in surface.lines()}
    assert kinds == {"api", "command", "file", "hook", "metric", "operation", "option", "problem"}
