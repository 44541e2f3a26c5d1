"""The last lines at WARNING and above, for the operators' page.

More people see a page on a screen than may read the log. So these lines contain less than the log: no secret, no text
that an error quotes, no address, no traceback. The id of a request or record leads from a line here to the same line
of the log. Without an id, the time does.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ingestd.api.times import format_time
from ingestd.observability.logs import LogKeeper, current_request
from ingestd.observability.logs.formats import message_of
from ingestd.observability.logs.redaction import redact
from ingestd.support.message_kinds import message_kind

__all__ = ["RecentLine", "RecentLines", "presentable", "recent_lines"]

_SHOWN = 20  # kinds
_KEPT = 100  # kinds
_LONGEST = 300  # characters of a message

# Quoted text is input. An apostrophe within a word opens no quotation.
_QUOTED = re.compile(r"""(?<![\w\\])([bBrRuU]{0,2})(['"])(?:(?!\2)[^\\]|\\.)*\2(?!\w)""", re.DOTALL)
_MAIL = re.compile(r"""[^\s@'"<>()\[\],;:=]+@[^\s@'"<>()\[\],;:=]+\.\w+""")


def presentable(text: str) -> str:
    """The text of an error without its quotations: for a page, not for a log."""
    return _cut(_without_quotes(text))


def _without_quotes(text: str) -> str:
    text = _MAIL.sub("…", _QUOTED.sub(r"\1\2…\2", redact(text, current_request.get())))
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class RecentLine(msgspec.Struct, frozen=True, rename="camel"):
    """The newest line of one kind, as the page has it."""

    at: str
    times: int
    """The number of lines of this kind."""
    level: str
    logger: str
    message: str
    error: str | None
    """The class of the exception, if the line has one."""
    request_id: str | None
    record_id: str | None


class _Kind(NamedTuple):
    level: str
    logger: str
    message: str
    error: str | None
    beginning: str
    """The first word of the message, which may be a sink's name."""


def _shrunk(lines: Mapping[_Kind, RecentLine], most: int) -> dict[_Kind, RecentLine]:
    kept = dict(lines)
    of_logger = Counter(kind.logger for kind in lines)
    alike = Counter((kind.logger, kind.beginning) for kind in lines)
    while len(kept) > most:
        kinds = max(of_logger.values())
        noisy = {each: count for each, count in alike.items() if of_logger[each[0]] == kinds}
        greatest = max(noisy.values())
        goes = next(kind for kind in kept if noisy.get((kind.logger, kind.beginning)) == greatest)
        del kept[goes]
        of_logger[goes.logger] -= 1
        alike[goes.logger, goes.beginning] -= 1
    return kept


class RecentLines(LogKeeper):
    """One line of each kind. Lines of one kind differ only in ids, numbers or quoted texts.

    The number of kinds is limited. Beyond it, the kind seen longest ago goes: of the logger with most kinds, and there
    of the beginning with most kinds. So a noisy logger or sink takes no room from the others.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: dict[_Kind, RecentLine] = {}
        """The newest line of each kind, in the order of the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            kind, line = _read(record)
        except Exception:  # noqa: BLE001 - the parts of a record may raise anything; the log has the line
            return
        before = self._lines.pop(kind, None)
        self._lines[kind] = line if before is None else replace(line, times=before.times + 1)
        if len(self._lines) > _KEPT:
            self._lines = _shrunk(self._lines, _KEPT)

    def forget(self) -> None:
        """Drop all lines, because errors may quote a person. Any thread may call it."""
        self.acquire()
        try:
            self._lines = {}
        finally:
            self.release()

    def newest_first(self) -> list[RecentLine]:
        """The lines, newest first. Any thread may call it."""
        self.acquire()
        try:
            lines = self._lines.copy()
        finally:
            self.release()
        return [*reversed(_shrunk(lines, _SHOWN).values())]


def recent_lines() -> RecentLines:
    """The lines that this daemon keeps."""
    return next(each for each in logging.getLogger().handlers if isinstance(each, RecentLines))


def _read(record: logging.LogRecord) -> tuple[_Kind, RecentLine]:
    fields: Mapping[str, Any] = getattr(record, "ingestd_fields", {})
    message, peer, request = message_of(record), fields.get("peer"), current_request.get()
    if peer:
        message = message.replace(peer, "…")
    message = _without_quotes(message)
    level, error = record.levelname.lower(), record.exc_info[0] if record.exc_info else None
    line = RecentLine(
        at=format_time(round(record.created * 1000)),
        times=1,
        level=level,
        logger=record.name,
        message=_cut(message),
        error=None if error is None else error.__name__,
        request_id=fields.get("request_id") or (None if request is None else request.id),
        record_id=fields.get("record_id"),
    )
    alike = message_kind(message)
    return _Kind(level, record.name, alike, line.error, alike.partition(" ")[0]), line
