"""Other clocks for programs, by libfaketime. Their monotonic clock is the machine's."""

from __future__ import annotations

from pathlib import Path

__all__ = ["faked", "faked_redis"]


def _library(name: str) -> str:
    return next(str(path) for path in Path("/usr/lib").glob(name))


def faked(**variables: str) -> dict[str, str]:
    """The environment of a program with another clock: `FAKETIME` or `FAKETIME_TIMESTAMP_FILE` says which."""
    return {
        "LD_PRELOAD": _library("*/faketime/libfaketimeMT.so.1"),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
        # libfaketime corrects waits for old C libraries. With a newer one a thread that waits for another then asks
        # again and again, which takes eight times the CPU time of both.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        **variables,
    }  # fmt: skip


def faked_redis(**variables: str) -> dict[str, str]:
    """Like `faked`. Redis' own allocator asks for the time before libfaketime is ready, so it gets the C library's."""
    environment = faked(**variables)
    return {**environment, "LD_PRELOAD": f"{environment['LD_PRELOAD']} {_library('*-linux-gnu/libc.so.6')}"}
