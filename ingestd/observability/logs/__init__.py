"""The log, on standard error. docs/logs.md tells what is in it, `log_formats` what a line looks like."""

from __future__ import annotations

import logging
import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from ingestd.config import LogsOptions

from .formats import JsonFormatter, TextFormatter, current_request
from .recent import RecentLines

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["RecentLines", "configure_logs", "current_request", "set_up_logs"]

log = logging.getLogger("ingestd")


def set_up_logs(*, serving: bool = False) -> None:
    """Before the configuration is known: what a daemon logs is for machines, unless it is on a terminal."""
    _write(as_json=serving and _is_json("auto"))
    _set_level(logging.INFO)
    # Else Python would write these to standard error itself, in another format and with all that is in them.
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    threading.excepthook = _uncaught_in_thread


def configure_logs(options: LogsOptions) -> None:
    """As the configuration of a daemon has it."""
    _write(as_json=_is_json(options.format))
    _set_level(logging.getLevelNamesMapping()[options.level.upper()])


def _is_json(format: str) -> bool:
    return not sys.stderr.isatty() if format == "auto" else format == "json"


def _write(*, as_json: bool) -> None:
    handler = _Handler()
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter(colour=colour))
    root = logging.getLogger()
    root.handlers[:] = [handler, *(each for each in root.handlers if isinstance(each, RecentLines))]


def _set_level(level: int) -> None:
    logging.getLogger("ingestd").setLevel(level)
    # What libraries say at DEBUG is for their own authors, and quotes all that they are given.
    logging.getLogger().setLevel(max(level, logging.INFO))
    # At INFO Tornado quotes malformed headers as they came: of any length, and keys among them.
    logging.getLogger("tornado.general").setLevel(max(level, logging.WARNING))


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging calls
        """Nobody can be told that standard error fails. Python would try, with the arguments as they are."""


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("an error that nothing expects", exc_info=(kind, error, trace))


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread is not None else "unknown"
    log.error("the thread %s ended", name, exc_info=_info(arguments))


def _unraisable(arguments: UnraisableHookArgs) -> None:
    log.error(
        "%s in %r", arguments.err_msg or "an error that cannot be raised", arguments.object, exc_info=_info(arguments)
    )


def _info(arguments: Any) -> Any:
    return arguments.exc_type, arguments.exc_value, arguments.exc_traceback
