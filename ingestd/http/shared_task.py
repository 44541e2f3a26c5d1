"""The tasks that handle requests: simultaneous requests share one as long as none of them waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any

from ingestd.pipeline.coroutines import Begun

__all__ = ["RequestTasks"]

_Work = Coroutine[Any, Any, None]


class RequestTasks:
    """Runs the coroutines that handle requests.

    Most requests are handled without waiting for anything, and a task takes a twelfth of their time. So the requests of
    one turn of the event loop share a task in the next turn. It runs one after the other, each in its context. A
    request that waits keeps the task. While any waits, the others have a task each.
    """

    def __init__(self) -> None:
        self._coming: deque[tuple[_Work, Context]] = deque()
        """The requests that the shared task handles next."""
        self._apart: set[asyncio.Task[None]] = set()
        """The tasks of single requests. (The event loop has no strong reference to them.)"""

    def begin(self, work: _Work) -> None:
        """Run this coroutine from the next turn of the event loop on."""
        if self._apart:
            _start(self._handle(work))
            return
        self._coming.append((work, copy_context()))
        if len(self._coming) == 1:
            _start(self._handle_all())

    async def _handle_all(self) -> None:
        try:
            while self._coming:
                work, context = self._coming.popleft()
                try:
                    awaited = context.run(work.send, None)
                except StopIteration:
                    continue
                self._set_apart()
                await self._handle(Begun(work, awaited, context))
                return
        finally:
            self._set_apart()  # if one has ended this task with an exception

    def _set_apart(self) -> None:
        """Give each remaining request a task."""
        while self._coming:
            work, context = self._coming.popleft()
            _start(self._handle(work), context)

    async def _handle(self, work: _Work | Begun) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._apart.add(task)
        try:
            await work
        finally:
            self._apart.discard(task)


def _start(work: _Work, context: Context | None = None) -> None:
    asyncio.get_running_loop().create_task(work, name="request", context=context)
