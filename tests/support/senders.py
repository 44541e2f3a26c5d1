"""Messages sent to a journal without a pause. Each is repeated until it is answered, and can be found afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from ingestd.api.backend import Backend
from ingestd.api.errors import DuplicateMessage, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.testing.backends import append_each

from .journals import read_all, until

__all__ = ["LONG", "NOW", "Senders", "stored", "texts"]

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
LONG = 30.0
"""The seconds that a failover may take on a busy machine."""
_DAY = 86_400_000


class Senders:
    """Senders that repeat each message until it is answered. They share the back ends."""

    def __init__(self, backends: Sequence[Backend], count: int, pause: float = 0.0) -> None:
        """`pause` is the time between two messages of a sender, in seconds."""
        self.answered: list[str] = []
        self.refused = 0
        self._pause = pause
        self._ending = False
        self._tasks = [
            asyncio.create_task(self._send(backends[number % len(backends)], number)) for number in range(count)
        ]

    async def more(self, count: int) -> None:
        """Waits until `count` more messages have been answered."""
        before = len(self.answered)
        await until(lambda: len(self.answered) >= before + count, LONG)

    async def end(self) -> None:
        """Waits until the last message of each sender is answered."""
        self._ending = True
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Ends all senders, whether or not they have their answers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, backend: Backend, sender: int) -> None:
        count = 0
        while not self._ending:
            count += 1
            await self._until_answered(backend, f"{sender}-{count}")
            await asyncio.sleep(self._pause)

    async def _until_answered(self, backend: Backend, text: str) -> None:
        record, claim = Record("event", NOW, text.encode()), IdempotencyKey(text, "", _DAY)
        while True:
            state = backend.store.begin(NOW, event=True)
            (error,) = await append_each(backend.journal, [Append(state, record, claim)])
            if error is None or isinstance(error, DuplicateMessage):  # the answer to the first append was lost
                break
            assert isinstance(error, Unavailable)
            self.refused += 1
            await asyncio.sleep(0.02)
        self.answered.append(text)


async def stored(backend: Backend) -> list[Record]:
    """The records in the journal, as soon as it can be read.

    A Sentinel may take a slow primary for a failed one, and a connection may still lead to a former primary. A daemon
    that has just lost a cursor reads nothing until it learns again how far the replicas are.
    """
    async with asyncio.timeout(LONG):
        while True:
            with suppress(Unavailable):
                last = await backend.journal.last()
                records = await read_all(backend.journal)
                if last <= (records[-1].position if records else 0):
                    return records
            await asyncio.sleep(0.05)


async def texts(backend: Backend, kind: str) -> list[str]:
    return [record.body.decode() for record in await stored(backend) if record.type == kind]
