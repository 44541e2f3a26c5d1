"""Coroutines that need no task until they wait. Most never wait, and a task costs more than their work."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any

__all__ = ["Begun"]


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
