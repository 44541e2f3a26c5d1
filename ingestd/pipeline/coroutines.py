"""Coroutines that need no task until they wait. Most never wait, and a task costs more than their work."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any

__all__ = ["Begun", "EarlyTask"]


class Begun:
    """The rest of a coroutine that has begun and awaits something.

    The task that has begun the coroutine must await this, because a timeout inside refers to that task. `context` is
    given if the coroutine runs in another context than that task.
    """

    def __init__(self, work: Coroutine[Any, Any, None], awaited: object, context: Context | None = None) -> None:
        self._awaited = awaited
        self._send: Callable[[Any], object] = work.send if context is None else partial(_in, context, work.send)
        self._throw: Callable[[BaseException], object] = (
            work.throw if context is None else partial(_in, context, work.throw)
        )

    def __await__(self) -> Generator[Any, Any, None]:
        awaited = self._awaited
        try:
            while True:
                try:
                    result = yield awaited
                except BaseException as error:  # noqa: BLE001 - the coroutine handles it
                    awaited = self._throw(error)
                else:
                    awaited = self._send(result)
        except StopIteration:
            return


def _in(context: Context, step: Callable[[Any], object], argument: object) -> object:
    return context.run(step, argument)


class EarlyTask:
    """A task that begins a coroutine in this turn of the event loop, not in the next one.

    Coroutines that never wait do not use up the task. `context` must not be the present context.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rest: Coroutine[Any, Any, None] | None = None
        self.task = asyncio.create_task(self._run(), context=context)

    def begin(self, work: Coroutine[Any, Any, None]) -> Begun | None:
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
        return Begun(work, awaited)

    def end(self, rest: Coroutine[Any, Any, None]) -> None:
        """Run this coroutine from the next turn on."""
        self._rest = rest

    async def _run(self) -> None:
        if self._rest is not None:
            await self._rest
