"""The process of a daemon: its limit of open files, its interpreter, and the free memory that it returns to the system.

By default, the C library keeps most free memory. After some bodies of a megabyte, it takes memory for the next one from
its heap. Any later allocation behind it keeps that memory in the heap. So large blocks always get a separate mapping,
which the system gets back when they are freed.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from ingestd.support.periodic import every

__all__ = ["files_needed", "give_back_free_memory", "raise_file_limit", "tune_the_interpreter"]

_log = logging.getLogger("ingestd.process")

_RESERVE = 256
"""Files for the store, sinks, listeners, the log, and connections that are being refused."""


# Constants in malloc.h of the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_ARENAS = 2  # one for the event loop, one for all other threads: each arena keeps its free memory
_LARGE = 256 << 10  # bytes; a usual batch is smaller, because the system must clear the pages of every new mapping
_KEPT_AT_THE_END = 16 << 20  # free bytes kept at the heap's end: to return and request them again takes system calls
_GROWTH = 16 << 20  # bytes of growth after which memory is trimmed, but not within `_LEAST_PERIODS`
_LEAST_PERIODS = 20  # periods after a trim in which only a growth of `_MUCH` leads to the next one
_MUCH = 48 << 20  # bytes of growth after which memory is trimmed at the next period
_AT_LATEST = 120  # periods after which memory is trimmed without growth, if the process has worked
_WORK = 0.5  # seconds of CPU in which much memory may have been freed
_LARGE_PROCESS = 160 << 20  # bytes of memory from which on it is trimmed at each period with `_SOME_WORK`
_SOME_WORK = 0.05  # seconds of CPU


def files_needed(max_connections: int) -> int:
    """The limit that the daemon needs for `[http] max_connections`."""
    return max_connections + _RESERVE


def raise_file_limit(wanted: int) -> None:
    """Raise the soft limit of this process to `wanted`, or as far as the hard limit allows. Never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < possible:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < wanted:
        _log.warning(
            "this process may open only %d files, but http.max_connections needs %d: raise LimitNOFILE= or ulimit -Hn",
            possible,
            wanted,
        )


def tune_the_interpreter() -> None:
    """Tune the interpreter for a busy event loop beside threads that wait for the disk.

    - The garbage collector seldom looks at objects of requests: reference counts free almost all of them at once.
    - It never looks at objects of the start: they hold almost no garbage, and one search takes a tenth of the start.
    - A thread that returns from the disk runs after 0.1 ms, not 5 ms: answers wait for it some six times a commit.
    """
    _keep_large_pieces_apart()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    sys.setswitchinterval(0.0001)


def _keep_large_pieces_apart() -> None:
    """Set the allocator of the process. Only the GNU C library needs or understands these settings."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_AT_THE_END)
        mallopt(_M_ARENA_MAX, _ARENAS)


async def give_back_free_memory() -> None:
    """Return free memory inside the heap to the system. Never returns.

    A trim takes a millisecond, and up to ten if it returns much. It runs when memory has grown by 48 MiB, when it has
    grown by 16 MiB and the last trim was five seconds ago, and half a minute after the last trim if the process has
    worked. Above 160 MiB it runs four times a second while the process works: an attack may need much memory at once,
    and the memory that the attack before it has freed must not add to that.
    """
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        await asyncio.Event().wait()
    lowest, periods, worked = _resident(), 0, time.process_time()

    async def look() -> None:
        nonlocal lowest, periods, worked
        resident, periods, work = _resident(), periods + 1, time.process_time() - worked
        grown = resident - lowest
        if (
            grown > _MUCH
            or (grown > _GROWTH and periods >= _LEAST_PERIODS)
            or (work > _WORK and periods >= _AT_LATEST)
            or (work > _SOME_WORK and resident > _LARGE_PROCESS)
        ):
            await asyncio.to_thread(trim, 0)
            lowest, periods, worked = _resident(), 0, time.process_time()
            _log.debug("memory: %d MB of %d MB given back", (resident - lowest) // 10**6, resident // 10**6)
        lowest = min(lowest, resident)

    await every("memory", look)


def _resident() -> int:
    """The resident memory of the process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
