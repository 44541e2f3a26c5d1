"""How memory that is free goes back to the system: left to itself, the C library keeps most of it for good.

A body of a megabyte would get its memory from the heap once some like it have come and gone, and whatever is allocated
behind it keeps that memory there. So large pieces always get memory of their own, which goes back when they are freed.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from pathlib import Path

__all__ = ["give_back_free_memory", "keep_large_pieces_apart"]

_log = logging.getLogger("ingestd.memory")

# Of malloc.h of the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_ARENAS = 2  # the event loop's, and one for all other threads: each keeps what is free in it
_LARGE = 256 << 10  # bytes: a usual batch fits, whose pages the system would have to clear each time
_KEPT_AT_THE_END = 16 << 20  # bytes of the heap's end, which is given back and asked for again at a system call each
_PERIOD = 1.0  # seconds
_GROWTH = 16 << 20  # bytes that are given back after some periods,
_PATIENCE = 5  # periods
_MUCH = 48 << 20  # and bytes that are given back at the next one
_AT_LATEST = 30  # periods: what has not grown may have been freed
_WORK = 0.5  # seconds of CPU that may free much


def keep_large_pieces_apart() -> None:
    """For the whole process. Other C libraries than GNU's do so by themselves, or cannot be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_AT_THE_END)
        mallopt(_M_ARENA_MAX, _ARENAS)


async def give_back_free_memory() -> None:
    """Give back what is free among what is not, for as long as the daemon runs.

    It takes some milliseconds. So it is done where memory has grown, seldom unless it has grown much, and every half a
    minute of work.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    lowest, periods, worked = _resident(), 0, time.process_time()
    while True:
        await asyncio.sleep(_PERIOD)
        resident, periods = _resident(), periods + 1
        grown = resident - lowest
        has_grown = grown > _MUCH or (grown > _GROWTH and periods >= _PATIENCE)
        if trim is not None and (has_grown or (periods >= _AT_LATEST and time.process_time() - worked > _WORK)):
            await asyncio.to_thread(trim, 0)
            lowest, periods, worked = _resident(), 0, time.process_time()
            _log.debug("memory: %d MB of %d MB given back", (resident - lowest) // 10**6, resident // 10**6)
        lowest = min(lowest, resident)


def _resident() -> int:
    """Bytes that the process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
