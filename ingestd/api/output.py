"""Standard output of commands: text for people in the encoding of the terminal, data for programs in UTF-8."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable

__all__ = ["columns", "write", "write_data", "write_json", "write_result"]


def write(lines: Iterable[str]) -> None:
    """Write lines for people."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()  # the next line may be long in coming


def columns() -> int:
    """The maximum width of text: the width of the terminal, or no limit for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def write_data(lines: Iterable[str], *, end: str = "\n") -> None:
    """Write lines for programs, in UTF-8."""
    sys.stdout.flush()
    sys.stdout.buffer.writelines(f"{line}{end}".encode(errors="replace") for line in lines)
    sys.stdout.buffer.flush()


def write_json(*values: object) -> None:
    """Write values for programs, each as a line of JSON in ASCII, so that no control character reaches a terminal."""
    write_data(map(json.dumps, values))


def write_result(*values: object, lines: Iterable[str], as_json: bool) -> None:
    """Write the result of a command: these values for programs, or lines for people."""
    if as_json:
        write_json(*values)
    else:
        write(lines)
