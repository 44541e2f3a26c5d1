"""Callers and sinks beside a journal whose primary is cut off, and a check that no sink has a record that was lost."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.testing.backends import append_each

from .journals import running, until
from .senders import LONG, NOW, stored

__all__ = ["Taker", "calling"]


class Taker(Consumer):
    """A sink: it keeps each record that it gets. It is slow, so there are more records to read whenever it reads."""

    name = "sink"
    max_records = 50

    def __init__(self, taken: list[Record]) -> None:
        self.taken = taken

    async def process(self, records: Sequence[Record], step: Step) -> None:
        self.taken += records
        await asyncio.sleep(0.03)


async def _follow(backend: RedisBackend, taken: list[Record]) -> None:
    """Read as a sink with a buffer does: a few records at a time, without a commit, so it often reads the newest ones.

    Runs until cancelled.
    """
    position = 0
    while True:
        try:
            await backend.journal.wait(position)
            some = await backend.journal.read(position, 5)
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            taken += some
            position = some[-1].position if some else position


class _Callers:
    """Callers that send a message again until it is answered. Each attempt is another record, with an `id`."""

    def __init__(self, backends: Sequence[RedisBackend], count: int) -> None:
        self.answered: list[str] = []
        self._ending = False
        self._tasks = [asyncio.create_task(self._send(backends, n)) for n in range(count)]

    async def end(self) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)

    async def _send(self, backends: Sequence[RedisBackend], number: int) -> None:
        count = 0
        while not self._ending:
            count += 1
            message = f"{number}-{count}"
            while isinstance(await self._attempt(backends[count % len(backends)], message), Unavailable):  # noqa: ASYNC110 - a caller
                await asyncio.sleep(0.02)
            self.answered.append(message)

    async def _attempt(self, backend: RedisBackend, message: str) -> Exception | None:
        record = Record("event", NOW, json.dumps({"id": uuid4().hex, "messageId": message}).encode())
        claim = IdempotencyKey(message, "", 86_400_000)
        (error,) = await append_each(backend.journal, [Append(backend.store.begin(NOW, event=True), record, claim)])
        return error


@asynccontextmanager
async def calling(backends: Sequence[RedisBackend]) -> AsyncIterator[None]:
    """Callers send to these daemons, which run sinks.

    At the end the sinks must have all records of the journal and no others. All answered messages are there once.
    """
    taken: list[Record] = []
    async with AsyncExitStack() as stack:
        for backend in backends:
            await stack.enter_async_context(running(backend, Taker(taken), patience=LONG))
        callers = _Callers(backends, 8)
        following = [asyncio.create_task(_follow(backend, taken)) for backend in backends]
        yield
        await callers.end()
        last = (await stored(backends[0]))[-1].position
        await until(lambda: max(each.position for each in taken) == last, LONG)
        for task in following:
            task.cancel()
        ended = await asyncio.gather(*following, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    journal = [each.decode() for each in await stored(backends[0])]
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for each in taken:
        ids[each.decode()["messageId"]].add(each.decode()["id"])
    assert {each.decode()["id"] for each in taken} == {each["id"] for each in journal}
    assert [found for found in ids.values() if len(found) > 1] == []
    assert sorted(ids) == sorted(each["messageId"] for each in journal) == sorted(callers.answered)
