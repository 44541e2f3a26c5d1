"""Coroutines that need no task until they wait. Most never wait, and a task costs more than their work."""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from typing import Any

__all__ = ["EarlyTask", "RequestTasks", "Work", "run_until_wait"]

Work = Coroutine[Any, Any, None]


@types.coroutine
def _rest(work: Work, awaited: object, context: Context | None = None) -> Generator[Any, Any, None]:
    """The rest of a coroutine that has begun and awaits something.

    The task that has begun the coroutine must await this, because a timeout inside refers to that task. `context` is
    given if the coroutine runs in another context than that task.
    """
    send: Callable[[Any], object] = work.send
    throw: Callable[[Any], object] = work.throw
    if context is not None:
        run: Callable[..., object] = context.run
        send, throw = partial(run, send), partial(run, throw)
    try:
        while True:
            try:
                result = yield awaited
            except BaseException as error:  # noqa: BLE001 - the coroutine handles it
                awaited = throw(error)
            else:
                awaited = send(result)
    except StopIteration:
        return


def run_until_wait(work: Work, context: Context | None = None) -> Awaitable[None] | None:
    """Run a coroutine until it ends or waits. If it waits, return the rest, which the present task must await."""
    try:
        awaited = work.send(None) if context is None else context.run(work.send, None)
    except StopIteration:
        return None
    return _rest(work, awaited, context)


class EarlyTask:
    """A task that begins a coroutine in this turn of the event loop, not in the next one.

    Coroutines that never wait do not use up the task.
    """

    def __init__(self) -> None:
        self._context = copy_context()
        self._rest: Awaitable[None] | None = None
        self.task = asyncio.create_task(self._run(), context=self._context)

    def run_until_wait(self, work: Work) -> Awaitable[None] | None:
        """Run the coroutine until it ends or waits. If it waits, return the rest, which this task must `end`."""
        loop, present = asyncio.get_running_loop(), asyncio.current_task()
        assert present is not None
        # Python 3.12 has eager tasks for this. These functions are documented for authors of tasks.
        _leave_task(loop, present)
        _enter_task(loop, self.task)
        try:
            awaited = self._context.run(work.send, None)
        except StopIteration:
            return None
        finally:
            _leave_task(loop, self.task)
            _enter_task(loop, present)
        return _rest(work, awaited)

    def end(self, rest: Awaitable[None]) -> None:
        """Run this from the next turn on."""
        self._rest = rest

    async def _run(self) -> None:
        if self._rest is not None:
            await self._rest


class RequestTasks:
    """Runs the coroutines that handle requests.

    A task takes a twelfth of the time of most requests. So the requests of one turn of the event loop share a task in
    the next turn. It runs one after the other, each in its context. A request that waits keeps the task. While any
    waits, the others have a task each.
    """

    def __init__(self) -> None:
        self._coming: deque[tuple[Work, Context]] = deque()
        """The requests that the shared task handles next."""
        self._apart: set[asyncio.Task[None]] = set()
        """The tasks of single requests. (The event loop has no strong reference to them.)"""

    def begin_request(self, work: Work) -> None:
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
                rest = run_until_wait(*self._coming.popleft())
                if rest is not None:
                    self._set_apart()
                    await self._handle(rest)
                    return
        finally:
            self._set_apart()  # if one has ended this task with an exception

    def _set_apart(self) -> None:
        """Give each remaining request a task."""
        while self._coming:
            work, context = self._coming.popleft()
            _start(self._handle(work), context)

    async def _handle(self, work: Awaitable[None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._apart.add(task)
        try:
            await work
        finally:
            self._apart.discard(task)


def _start(work: Work, context: Context | None = None) -> None:
    asyncio.get_running_loop().create_task(work, name="request", context=context)
