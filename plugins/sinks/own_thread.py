"""A thread of a sink whose library blocks. Its calls keep their order, also if they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["OwnThread"]

Result = TypeVar("Result")


class OwnThread:
    """A separate thread, because a storage that hangs must not block the threads that others share."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._job: asyncio.Future[Any] | None = None

    async def done(self) -> None:
        """Wait for the work of a cancelled call, because a thread cannot be cancelled."""
        if self._job is not None and not self._job.done():
            await asyncio.wait([self._job])

    async def do(self, work: Callable[..., Result], *arguments: Any) -> Result:
        await self.done()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        job = asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        self._job = job
        return await asyncio.shield(job)

    async def close(self) -> None:
        """Wait for the present work, and end the thread. A later call begins a new one."""
        await self.done()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
