"""The time limit of a call to a sink."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ingestd.api.errors import SinkFailure, SinkRetry

__all__ = ["within"]


async def within(
    seconds: float, work: Awaitable[None], what: str, too_long: type[SinkFailure | SinkRetry] = SinkFailure
) -> None:
    """Await work of a sink for at most that time.

    Raises `too_long` if it takes longer, and `SinkFailure` if it cancels itself.
    """
    limit = asyncio.timeout(seconds)
    task = asyncio.current_task()
    assert task is not None
    try:
        async with limit:
            await work
    except TimeoutError as error:
        if not limit.expired():  # the sink itself raised the TimeoutError
            raise
        raise too_long(f"{what} took longer than {seconds:g} s") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise SinkFailure(f"{what} was cancelled from within the sink") from error
