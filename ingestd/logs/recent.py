"""The last lines at WARNING and above, for a page that operators look at.

A log is read by who may read it; a page is left open on a screen, and shown around. So what is kept here says less
than the log does: no secret, as there, but also nothing that errors quote, no address, no traceback. The request's
id leads from a line here to the one in the log.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from .formats import current_request, message_of
from .redaction import redact

__all__ = ["RecentLine", "RecentLines", "presentable"]

_MOST = 20  # lines
_LONGEST = 300  # characters of each

# What stands in quotes is what was given. An apostrophe within a word opens none.
_QUOTED = re.compile(r"""(?<![\w\\])(['"])(?:(?!\1)[^\\]|\\.)*\1(?!\w)""", re.DOTALL)
_MAIL = re.compile(r"""[^\s@'"<>()\[\],;:=]+@[^\s@'"<>()\[\],;:=]+\.\w+""")
_NUMBERS = re.compile(r"\d+")


def presentable(text: str) -> str:
    """What an error says, without what it quotes: for a page, not for a log."""
    text = _MAIL.sub("…", _QUOTED.sub(r"\1…\1", redact(text, current_request.get())))
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class RecentLine(NamedTuple):
    at: float
    """When it was written last, in seconds,"""
    times: int
    """and how often."""
    level: str
    logger: str
    message: str
    error: str | None
    """The class of the exception, if it tells of one."""
    request_id: str | None


class RecentLines(logging.Handler):
    """Lines that differ in numbers only are one, so that what fails again and again leaves room for others."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: OrderedDict[tuple[str, ...], RecentLine] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = _line(record)
        except Exception:  # noqa: BLE001 - whatever the parts of a record raise: the log has the line
            return
        key = line.level, line.logger, _NUMBERS.sub("0", line.message), line.error or ""
        before = self._lines.pop(key, None)
        self._lines[key] = line if before is None else line._replace(times=before.times + 1)
        while len(self._lines) > _MOST:
            self._lines.popitem(last=False)

    def newest_first(self) -> list[RecentLine]:
        """To be called on any thread."""
        self.acquire()
        try:
            return [*reversed(self._lines.values())]
        finally:
            self.release()


def _line(record: logging.LogRecord) -> RecentLine:
    fields: Mapping[str, Any] = getattr(record, "ingestd_fields", {})
    message, peer, request = message_of(record), fields.get("peer"), current_request.get()
    if peer:
        message = message.replace(peer, "…")
    kind = record.exc_info[0] if record.exc_info else None
    return RecentLine(
        at=record.created,
        times=1,
        level=record.levelname.lower(),
        logger=record.name,
        message=presentable(message),
        error=None if kind is None else kind.__name__,
        request_id=fields.get("request_id") or (None if request is None else request.id),
    )
