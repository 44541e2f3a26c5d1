"""Requests are handled in the order of their arrival, in a shared task, and no request waits for another."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.scheduling.coroutines import RequestTasks

whose: ContextVar[int | None] = ContextVar("whose", default=None)


class Request:
    """A request that waits `waits` times, and records its context and its tasks."""

    def __init__(self, number: int, waits: int = 0) -> None:
        self.number = number
        self.waits = waits
        self.seen: list[int | None] = []
        """The context variable at the begin, after the request has set it, and after each wait."""
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.done = False

    async def handle(self) -> None:
        self._look()
        whose.set(self.number)
        self._look()
        for _ in range(self.waits):
            await asyncio.sleep(0)
            self._look()
        self.done = True

    def _look(self) -> None:
        self.seen.append(whose.get())
        self.tasks.append(asyncio.current_task())


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_requests_that_do_not_wait_share_a_task() -> None:
    tasks, requests = RequestTasks(), [Request(number) for number in range(5)]
    for request in requests:
        tasks.begin_request(request.handle())
    assert not any(request.done for request in requests)
    await asyncio.sleep(0)
    assert all(request.done for request in requests)
    assert len({task for request in requests for task in request.tasks}) == 1


async def test_no_request_waits_for_another() -> None:
    tasks, end = RequestTasks(), asyncio.Event()
    waiting = [asyncio.ensure_future(end.wait()) for _ in range(2)]
    tasks.begin_request(_await(waiting[0]))
    behind = Request(1)
    tasks.begin_request(behind.handle())
    await turns()
    assert behind.done
    later = Request(2)
    tasks.begin_request(_await(waiting[1]))
    tasks.begin_request(later.handle())
    await turns()
    assert later.done
    end.set()
    await asyncio.wait(waiting)


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=5))
def test_each_has_its_own_context_and_task_for_as_long_as_it_waits(came: list[list[int]]) -> None:
    async def all_of() -> list[Request]:
        tasks = RequestTasks()
        requests: list[Request] = []
        for turn in came:
            for waits in turn:
                requests.append(Request(len(requests), waits))
                tasks.begin_request(requests[-1].handle())
            await asyncio.sleep(0)
        await turns()
        return requests

    requests = asyncio.run(all_of())
    assert all(request.done for request in requests)
    for request in requests:
        assert request.seen == [None] + [request.number] * (1 + request.waits)
        assert len({*request.tasks}) == 1
    waited = [request.tasks[0] for request in requests if request.waits]
    assert len({*waited}) == len(waited)


async def test_a_timeout_ends_one_request_only() -> None:
    async def handle() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        ended.set()

    tasks, ended = RequestTasks(), asyncio.Event()
    others = [Request(number, waits=3) for number in range(2)]
    tasks.begin_request(others[0].handle())
    tasks.begin_request(handle())
    tasks.begin_request(others[1].handle())
    await ended.wait()
    await turns()
    assert all(request.done for request in others)


@pytest.mark.parametrize("waits", [False, True])
async def test_the_cancellation_of_one_request_cancels_no_other(waits: bool) -> None:
    async def handle() -> None:
        if waits:
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    tasks, others = RequestTasks(), [Request(1), Request(2, waits=1), Request(3)]
    tasks.begin_request(others[0].handle())
    tasks.begin_request(handle())
    for request in others[1:]:
        tasks.begin_request(request.handle())
    await turns()
    assert all(request.done for request in others)


async def test_cancelling_all_tasks_cancels_waiting_requests() -> None:
    async def handle() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(True)
            raise

    ended: list[bool] = []
    tasks = RequestTasks()
    for _ in range(3):
        tasks.begin_request(handle())
    await turns()
    under_way = asyncio.all_tasks() - {asyncio.current_task()}
    for task in under_way:
        task.cancel()
    await asyncio.wait(under_way)
    assert ended == [True] * 3


async def _await(future: asyncio.Future[Any]) -> None:
    await future
