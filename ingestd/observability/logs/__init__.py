"""The log on standard error. docs/logs.md describes its lines, `formats` their format."""

from __future__ import annotations

import logging
import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from ingestd.config import LogsOptions

from .formats import JsonFormatter, TextFormatter, current_request

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["LogKeeper", "configure_logs", "current_request", "set_up_logs"]

log = logging.getLogger("ingestd")


def set_up_logs(*, serving: bool = False) -> None:
    """The log before the configuration is read. A daemon logs JSON, unless standard error is a terminal."""
    _write(as_json=serving and _is_json("auto"))
    _set_level(logging.INFO)
    # Otherwise Python writes these to standard error, in another format and with secrets.
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    threading.excepthook = _uncaught_in_thread


def configure_logs(options: LogsOptions) -> None:
    """Apply the section `[logs]` of the configuration."""
    _write(as_json=_is_json(options.format))
    _set_level(logging.getLevelNamesMapping()[options.level.upper()])


def _is_json(format: str) -> bool:
    return not sys.stderr.isatty() if format == "auto" else format == "json"


def _write(*, as_json: bool) -> None:
    handler = _Handler()
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter(colour=colour))
    root = logging.getLogger()
    root.handlers[:] = [handler, *(each for each in root.handlers if isinstance(each, LogKeeper))]


def _set_level(level: int) -> None:
    logging.getLogger("ingestd").setLevel(level)
    # DEBUG lines of libraries are for their authors, and quote every argument.
    logging.getLogger().setLevel(max(level, logging.INFO))
    # At INFO Tornado quotes malformed headers whole: they can be long and contain keys.
    logging.getLogger("tornado.general").setLevel(max(level, logging.WARNING))


class LogKeeper(logging.Handler):
    """A handler of an extension. All others leave with `configure_logs`: they would write secrets."""


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging calls
        """Ignore a failing standard error. Python would write the unredacted arguments to it."""


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("unexpected error", exc_info=(kind, error, trace))


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread is not None else "unknown"
    log.error("the thread %s ended", name, exc_info=_info(arguments))


def _unraisable(arguments: UnraisableHookArgs) -> None:
    log.error("%s in %r", arguments.err_msg or "unraisable error", arguments.object, exc_info=_info(arguments))


def _info(arguments: Any) -> Any:
    return arguments.exc_type, arguments.exc_value, arguments.exc_traceback
