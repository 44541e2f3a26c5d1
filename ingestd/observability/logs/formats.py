"""The formats of a log line: text for people, JSON for machines.

A format never fails and never shows a secret. Text that a caller sent cannot forge a line.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from typing import Any

from ingestd.api.events import Request
from ingestd.api.times import format_time

from .redaction import redact

__all__ = ["JsonFormatter", "TextFormatter", "current_request", "message_of"]

current_request: ContextVar[Request | None] = ContextVar("current_request", default=None)
"""The request in progress. Every line has its id, and no line has its secrets."""

_LONGEST = 32_768
"""The maximum length of a message or traceback, in characters: an error may quote a whole body."""

_COLOURS = {
    logging.DEBUG: "2",
    logging.INFO: "32",
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "1;31",
}


class _Line:
    """The content that both formats share."""

    def __init__(self, formatter: logging.Formatter, record: logging.LogRecord) -> None:
        request = current_request.get()
        self.time = format_time(round(record.created * 1000))
        self.fields: dict[str, Any] = getattr(record, "ingestd_fields", {})
        """Further members of a JSON line. In an access line they name its request."""
        self.request_id: str | None = self.fields.get("request_id") or (None if request is None else request.id)
        self.record_id: str | None = self.fields.get("record_id")
        self.message = message_of(record)
        self.exception = _readied(_exception(formatter, record), request)


class TextFormatter(logging.Formatter):
    """One line: time in UTC, level, logger, id of the request or record, message. An indented traceback follows."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        line = _Line(self, record)
        level = record.levelname
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelno, '0')}m{level}\x1b[0m"
        subject = line.request_id or line.record_id
        of = f" [{subject}]" if subject else ""
        lines = [f"{line.time} {level} {_escaped(f'{record.name}{of}: {line.message}')}"]
        lines += [f"    {_escaped(each)}" for each in line.exception.split("\n") if each]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One object a line, in ASCII, so that a reader with any encoding can parse it."""

    def format(self, record: logging.LogRecord) -> str:
        line = _Line(self, record)
        members = {"time": line.time, "level": record.levelname.lower(), "logger": record.name, "message": line.message}
        if line.request_id:
            members["request_id"] = line.request_id
        members |= line.fields
        if line.exception:
            members["exception"] = line.exception
        return json.dumps(members)


def message_of(record: logging.LogRecord) -> str:
    """The message of a line, without secrets."""
    return _readied(_message(record), current_request.get())


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage().rstrip()
    except Exception as error:  # noqa: BLE001 - the repr of an argument may raise anything; the line must not be lost
        return f"{record.msg} (its arguments cannot be shown: {type(error).__name__})"


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    exception = formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    return "\n".join(filter(None, [exception, record.stack_info]))


def _readied(text: str, request: Request | None) -> str:
    """The text without secrets and unencodable characters, at most `_LONGEST` characters long."""
    # The first cut keeps a search through a body short, but may halve a secret. The second cut removes that part.
    text = _cut(redact(_cut(text, 2 * _LONGEST), request), _LONGEST)
    return text.encode(errors="backslashreplace").decode()


def _cut(text: str, longest: int) -> str:
    """The text, or both of its ends if it is too long."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} … {text[-half:]}"


def _escaped(text: str) -> str:
    """The text with escapes for characters that end a line, move the cursor or change the direction of writing."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
