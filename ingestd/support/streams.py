"""The standard streams of a command. They may have any encoding, be closed, or be pipes without a reader."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from collections.abc import Callable

from .terminal import display_width

__all__ = ["ALIKE", "ESCAPED", "discard_unwritable", "prepare_streams", "reader_is_gone"]

ALIKE = "ingestd.alike"
"""The codec error handler of standard output. It replaces characters missing in the encoding by similar characters."""
ESCAPED = "ingestd.escaped"
"""The codec error handler of standard error. It replaces such characters by their numbers, so that logs keep them."""

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
"""ASCII characters for the characters in texts of ingestd. Each has the width of the character that it replaces."""


def prepare_streams() -> None:
    """Prepare the three standard streams for any command. Call it once, before other files are opened."""
    # The next file opened would get a closed descriptor, and output would damage that file.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(null, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - stays open
    for name, errors in (("stdout", ALIKE), ("stderr", ESCAPED)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            if isinstance(stream.buffer, io.RawIOBase):  # PYTHONUNBUFFERED is set, as in most container images
                # A write to a pipe ends early if the process is suspended, and this stream would drop the rest.
                stream = open(stream.fileno(), "w", 1, stream.encoding, closefd=False)  # noqa: SIM115 - stays open
                setattr(sys, name, stream)
            stream.reconfigure(errors=errors)


def reader_is_gone() -> bool:
    """Whether standard output is a pipe without a reader."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def discard_unwritable() -> None:
    """Discard text that can no longer be written. Otherwise the interpreter reports an error at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _alike(error: UnicodeError) -> tuple[str, int]:
    # The replacement has the width of the character, so that columns stay aligned.
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
