"""The last lines at WARNING and above, for the operators' page.

More people see a page on a screen than may read the log. So these lines contain less than the log: no secret, no text
that an error quotes, no address, no traceback. The id of a request or record leads from a line here to the same line
of the log. Without an id, the time does.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from ingestd.observability.logs import LogKeeper, current_request
from ingestd.observability.logs.formats import message_of
from ingestd.observability.logs.redaction import redact
from ingestd.support.message_kinds import message_kind

__all__ = ["RecentLine", "RecentLines", "presentable", "recent_lines"]

_T = TypeVar("_T", bound=Hashable)

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


class RecentLine(NamedTuple):
    """The newest line of one kind."""

    at: float
    """The time of the line, in seconds."""
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


class _Kinds:
    """The newest line of each kind, and the number of kinds for each logger and beginning."""

    def __init__(self) -> None:
        self.lines: OrderedDict[_Kind, RecentLine] = OrderedDict()
        self._of_logger: Counter[str] = Counter()
        self._alike: Counter[tuple[str, str]] = Counter()

    def add(self, kind: _Kind, line: RecentLine) -> None:
        before = self.lines.pop(kind, None)
        if before is None:
            self._of_logger[kind.logger] += 1
            self._alike[kind.logger, kind.beginning] += 1
            self.lines[kind] = line
        else:
            self.lines[kind] = line._replace(times=before.times + 1)

    def shrink(self, most: int) -> None:
        while len(self.lines) > most:
            kinds = max(self._of_logger.values())
            noisy = {alike: count for alike, count in self._alike.items() if self._of_logger[alike[0]] == kinds}
            greatest = max(noisy.values())
            goes = next(kind for kind in self.lines if noisy.get((kind.logger, kind.beginning)) == greatest)
            del self.lines[goes]
            _take_one(self._of_logger, goes.logger)
            _take_one(self._alike, (goes.logger, goes.beginning))

    def copy(self) -> _Kinds:
        made = _Kinds()
        made.lines, made._of_logger, made._alike = self.lines.copy(), self._of_logger.copy(), self._alike.copy()
        return made


def _take_one(counter: Counter[_T], key: _T) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class RecentLines(LogKeeper):
    """One line of each kind. Lines of one kind differ only in ids, numbers or quoted texts.

    The number of kinds is limited. Beyond it, the kind seen longest ago goes: of the logger with most kinds, and there
    of the beginning with most kinds. So a noisy logger or sink takes no room from the others.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kinds = _Kinds()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            kind, line = _read(record)
        except Exception:  # noqa: BLE001 - the parts of a record may raise anything; the log has the line
            return
        self._kinds.add(kind, line)
        self._kinds.shrink(_KEPT)

    def forget(self) -> None:
        """Drop all lines, because errors may quote a person. Any thread may call it."""
        self.acquire()
        try:
            self._kinds = _Kinds()
        finally:
            self.release()

    def newest_first(self) -> list[RecentLine]:
        """The lines, newest first. Any thread may call it."""
        self.acquire()
        try:
            kinds = self._kinds.copy()
        finally:
            self.release()
        kinds.shrink(_SHOWN)
        return [*reversed(kinds.lines.values())]


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
        at=record.created,
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
