"""The exit code of an error, for the daemon and for all commands. docs/operating.md has the table."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from ingestd.api.errors import ConfigError, IngestdError, Unavailable

__all__ = ["exit_code"]

_FULL = {errno.ENOSPC, errno.EDQUOT}
_SQLITE_CODES = {13: os.EX_TEMPFAIL, 11: os.EX_CONFIG, 26: os.EX_CONFIG}  # full; damaged; not a database


def exit_code(error: BaseException) -> int | None:
    """A full disk and a damaged file count wherever an error was raised from theirs. None for an unexpected error."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return os.EX_TEMPFAIL
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code in _SQLITE_CODES:
            return _SQLITE_CODES[code]
    if isinstance(error, Unavailable | OSError):
        return os.EX_TEMPFAIL
    if isinstance(error, ConfigError):
        return os.EX_CONFIG
    return 1 if isinstance(error, IngestdError) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
