"""The last lines at WARNING and above, for a page that operators look at.

A log is read by who may read it; a page is left open on a screen, and shown around. So what is kept here says less
than the log does: no secret, as there, but also nothing that errors quote, no address, no traceback. The id of a
request or record leads from a line here to the one in the log, and where there is none, the time does.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from .formats import current_request, message_of
from .message_kinds import message_kind
from .redaction import redact

__all__ = ["RecentLine", "RecentLines", "presentable"]

_SHOWN = 20  # kinds
_KEPT = 200  # kinds
_LONGEST = 300  # characters of each

# What stands in quotes is what was given. An apostrophe within a word opens none.
_QUOTED = re.compile(r"""(?<![\w\\])([bBrRuU]{0,2})(['"])(?:(?!\2)[^\\]|\\.)*\2(?!\w)""", re.DOTALL)
_MAIL = re.compile(r"""[^\s@'"<>()\[\],;:=]+@[^\s@'"<>()\[\],;:=]+\.\w+""")


def presentable(text: str) -> str:
    """What an error says, without what it quotes: for a page, not for a log."""
    text = _without_quotes(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _without_quotes(text: str) -> str:
    text = _MAIL.sub("…", _QUOTED.sub(r"\1\2…\2", redact(text, current_request.get())))
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


class RecentLine(NamedTuple):
    """The newest line of its kind."""

    at: float
    """When it was written, in seconds,"""
    times: int
    """and how many of its kind have been."""
    level: str
    logger: str
    message: str
    error: str | None
    """The class of the exception, if it tells of one."""
    request_id: str | None
    record_id: str | None


class _Kind(NamedTuple):
    level: str
    logger: str
    message: str
    error: str | None


class RecentLines(logging.Handler):
    """One line of each kind; those that differ in ids, numbers or quoted texts only are one kind.

    There is room for so many kinds. The one that was seen longest ago goes, of the logger that has most of them: so
    a noisy logger takes no room from the others.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: OrderedDict[_Kind, RecentLine] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            kind, line = _read(record)
        except Exception:  # noqa: BLE001 - whatever the parts of a record raise: the log has the line
            return
        before = self._lines.pop(kind, None)
        self._lines[kind] = line if before is None else line._replace(times=before.times + 1)
        _shrink(self._lines, _KEPT)

    def newest_first(self) -> list[RecentLine]:
        """To be called on any thread."""
        self.acquire()
        try:
            lines = self._lines.copy()
        finally:
            self.release()
        _shrink(lines, _SHOWN)
        return [*reversed(lines.values())]


def _shrink(lines: OrderedDict[_Kind, RecentLine], most: int) -> None:
    if len(lines) <= most:
        return
    of_logger = Counter(kind.logger for kind in lines)
    while len(lines) > most:
        greatest = max(of_logger.values())
        oldest = next(kind for kind in lines if of_logger[kind.logger] == greatest)
        del lines[oldest]
        of_logger[oldest.logger] -= 1


def _read(record: logging.LogRecord) -> tuple[_Kind, RecentLine]:
    fields: Mapping[str, Any] = getattr(record, "ingestd_fields", {})
    message, peer, request = message_of(record), fields.get("peer"), current_request.get()
    if peer:
        message = message.replace(peer, "…")
    level, error = record.levelname.lower(), record.exc_info[0] if record.exc_info else None
    line = RecentLine(
        at=record.created,
        times=1,
        level=level,
        logger=record.name,
        message=presentable(message),
        error=None if error is None else error.__name__,
        request_id=fields.get("request_id") or (None if request is None else request.id),
        record_id=fields.get("record_id"),
    )
    return _Kind(level, record.name, message_kind(_without_quotes(message)), line.error), line
