"""The limit of open files of this process. Most open files are connections."""

from __future__ import annotations

import logging
import resource

__all__ = ["needed", "raise_limit"]

log = logging.getLogger("ingestd.file_limits")

_RESERVE = 256
"""Files for the store, sinks, listeners, the log, and connections that are being refused."""


def needed(max_connections: int) -> int:
    """The limit that the daemon needs for `[http] max_connections`."""
    return max_connections + _RESERVE


def raise_limit(wanted: int) -> None:
    """Raise the soft limit of this process to `wanted`, or as far as the hard limit allows. Never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < possible:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < wanted:
        log.warning(
            "this process may open only %d files, but http.max_connections needs %d: raise LimitNOFILE= or ulimit -Hn",
            possible,
            wanted,
        )
