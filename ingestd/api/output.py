"""Standard output and error of commands: in any encoding, closed, or a pipe whose reader has ended.

Text for people is written as the terminal's encoding allows. Data for programs is UTF-8, whatever the locale says.
"""

from __future__ import annotations

import codecs
import io
import os
import select
import shutil
import sys
from collections.abc import Callable, Iterable

from .terminal import display_width

__all__ = ["ALIKE", "ESCAPED", "columns", "drop_unwritable", "prepare", "reader_is_gone", "write", "write_data"]

ALIKE = "ingestd.alike"
"""The codec error handler of standard output: characters that the encoding lacks become others that look alike."""
ESCAPED = "ingestd.escaped"
"""That of standard error: such characters become their numbers, which a log must not lose."""

_LOOKALIKES = {
    "█": "#",
    "░": ".",
    "→": ">",
    "…": "~",
    "“": '"',
    "”": '"',
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "—": "-",
}
"""ASCII for the characters in our own text; each is as wide as what it stands for."""


def write(lines: Iterable[str]) -> None:
    """Write lines for people."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()  # what comes next may take its time


def columns() -> int:
    """How wide text may be: as the terminal, and without a bound where it goes into a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def write_data(lines: Iterable[str], *, end: str = "\n") -> None:
    """Write lines for programs, in UTF-8."""
    sys.stdout.flush()
    sys.stdout.buffer.writelines(f"{line}{end}".encode(errors="replace") for line in lines)
    sys.stdout.buffer.flush()


def prepare() -> None:
    """Make the three standard streams fit for any command; to be called once, before other files are opened."""
    # A closed descriptor would be that of the next file opened, and a write to it would spoil that file.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(null, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - to the end
    for stream, errors in ((sys.stdout, ALIKE), (sys.stderr, ESCAPED)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def drop_unwritable() -> None:
    """Drop text that cannot be written any more, or the interpreter would complain of it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _alike(error: UnicodeError) -> tuple[str, int]:
    # As wide as the character, for the sake of columns.
    return _replaced(error, lambda letter: "?" * display_width(letter))


def _escaped(error: UnicodeError) -> tuple[str, int]:
    return _replaced(error, lambda letter: letter.encode("ascii", "backslashreplace").decode())


def _replaced(error: UnicodeError, otherwise: Callable[[str], str]) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_LOOKALIKES.get(letter) or otherwise(letter) for letter in lacking), error.end


codecs.register_error(ALIKE, _alike)
codecs.register_error(ESCAPED, _escaped)
