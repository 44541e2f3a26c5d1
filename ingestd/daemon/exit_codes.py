"""The exit code of an error, for the daemon and for all commands. docs/operating.md has the table."""

from __future__ import annotations

import errno
import os

from ingestd.api.errors import ConfigError, Unavailable

__all__ = ["disk_is_full", "exit_code"]

_FULL = {errno.ENOSPC, errno.EDQUOT}
_SQLITE_FULL = 13


def exit_code(error: BaseException) -> int:
    if isinstance(error, Unavailable | OSError) or disk_is_full(error):
        return os.EX_TEMPFAIL
    return os.EX_CONFIG if isinstance(error, ConfigError) else 1


def disk_is_full(error: BaseException | None) -> bool:
    """Whether a full disk has caused the error."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in _FULL) or getattr(
            error, "sqlite_errorcode", 0
        ) == _SQLITE_FULL:
            return True
        error = error.__cause__
    return False
