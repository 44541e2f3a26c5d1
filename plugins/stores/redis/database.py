"""One Redis as this process uses it: a link for batches of operations, and more connections for reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from redis import asyncio as aioredis
from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

from ingestd.api.errors import Unavailable
from ingestd.api.store import StoreSize

from .cluster.connections import SlotPool
from .durability import Durability, ask
from .link import Link, LinkOptions
from .refusals import explain
from .sentinel import SentinelPool
from .servers import address_of, answer_within
from .state import make_entries

__all__ = ["Database", "literal"]

_T = TypeVar("_T")

_SCANNED = 1000  # keys of one page of a scan
_MARKS = 64  # as many as in batch.lua
_KEYS_AT_ONCE = 100_000  # keys of a slot that are read at once: some 30 milliseconds of the node


class Database:
    """Shared by journal and store."""

    def __init__(self, pool: ConnectionPool, options: LinkOptions) -> None:
        self.prefix = options.prefix
        self._marks = ("EXISTS", *(f"{self.prefix}mark:{number}" for number in range(1, _MARKS + 1)))
        self.name = uuid4().hex
        """A new name with each opening. It is the holder of leases."""
        self._pool = pool
        self._client = aioredis.Redis(connection_pool=pool)
        self._timeout = options.timeout
        self.options = options
        self.link = self._make_link()
        self.entries = make_entries(self.link)
        """The cache of all transactions of events."""
        self.sentinels = pool.sentinels if isinstance(pool, SentinelPool) else None
        self.slot = pool.slot if isinstance(pool, SlotPool) else None
        """The slot of all keys; None outside of a cluster."""
        self._read_from: str | None = None
        """The server of the last `pipeline`."""

    def _make_link(self, *, serving: bool = False) -> Link:
        return Link(self._pool.make_connection, self.options, serving=serving)

    async def open(self, name: str | None = None, *, serving: bool) -> Durability:
        """With another name than before, or that one. Raises `RedisError`, `OSError`, `TimeoutError`."""
        self.name = name or uuid4().hex
        told, self.link = self.link.told, self._make_link(serving=serving)
        self.link.told = told  # a partition that is away is opened again and again
        self.forget()

        async def connect_and_ask() -> Durability:
            # Connect first: a server may refuse to answer the questions, but the connection must work.
            await self._pool.release(await self._pool.get_connection())
            return await ask(self._client)

        return await answer_within(self._timeout, connect_and_ask)

    def forget(self) -> None:
        """Begin with an empty cache."""
        self.entries = make_entries(self.link)

    async def close(self) -> None:
        await self.link.close()
        await self._pool.disconnect()
        if self.sentinels is not None:
            await self.sentinels.close()

    async def follow_sentinels(self) -> None:
        """Leave servers at once that the Sentinels do not name. Runs until cancelled."""
        pool = self._pool
        assert isinstance(pool, SentinelPool)

        async def changed() -> None:
            if pool.sentinels.is_promoting or self.link.address != pool.address:
                await self.link.leave()
            await pool.leave_others()

        await pool.sentinels.watch(changed)

    async def durability(self) -> Durability:
        """Raises `Unavailable`."""
        return await self._asked(partial(ask, self._client))

    async def pipeline(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The answers to reading commands. Raises `Unavailable`, also if another store answers or a part of it."""
        if not self.link.can_read:
            raise Unavailable(f"The store cannot be read at the moment: {self.link.problem}.")

        async def ask_all() -> list[Any]:
            connection = await self._pool.get_connection()
            try:
                asked = [("GET", f"{self.prefix}store-id"), self._marks, *commands]
                if self.slot is not None:
                    # No key has this name. So a node refuses this while it moves the slot to another node, key by key.
                    asked.append(("EXISTS", self.prefix))
                await connection.send_packed_command(connection.pack_commands(asked))
                store_id, marks, *answers = [await connection.read_response() for _ in asked]
                self._read_from = address_of(connection)
            except BaseException:  # unread answers may be left on the connection
                await connection.disconnect(nowait=True)
                raise
            finally:
                await self._pool.release(connection)
            # A store that only daemons of earlier versions have opened has no marks.
            if known and (store_id != known or marks not in (0, _MARKS)):
                await self.link.leave()  # its next batch notices the loss
                raise Unavailable("The store cannot be read at the moment: it has lost data.")
            return answers[: len(commands)]

        known = self.link.store_id.encode()
        return await self._asked(ask_all)

    async def size(self, fields: int) -> StoreSize:
        """The size of the server's data, or the share of the slot in it. Raises `Unavailable`."""
        commands: list[tuple[Any, ...]] = [("INFO", "memory")]
        if self.slot is not None:
            commands += ("DBSIZE",), ("CLUSTER", "COUNTKEYSINSLOT", self.slot)
        text, *counts = await self.pipeline(*commands)
        lines = (line.partition(":") for line in text.decode().splitlines())
        memory = {name: int(value) for name, _, value in lines if value.isdecimal()}
        used = memory.get("used_memory_dataset", 0)
        capacity = memory.get("maxmemory") or memory.get("total_system_memory", 0)
        share = counts[1] / max(counts[0], 1) if counts else 1
        return StoreSize(round(used * share), fields, capacity, max(capacity - memory.get("used_memory", 0), 0))

    async def names(self, beginning: str) -> AsyncIterator[list[str]]:
        """All keys that begin so after the prefix, without it, in pages; one may come twice. Raises `Unavailable`."""
        async for keys in self._keys(self.prefix + beginning):
            yield [key.decode()[len(self.prefix) :] for key in keys]

    async def _keys(self, beginning: str) -> AsyncIterator[list[bytes]]:
        if self.slot is not None:
            # A scan would go through the keys of all slots of the node.
            (count,) = await self.pipeline(("CLUSTER", "COUNTKEYSINSLOT", self.slot))
            if count <= _KEYS_AT_ONCE:
                (keys,) = await self.pipeline(("CLUSTER", "GETKEYSINSLOT", self.slot, 2 * _KEYS_AT_ONCE))
                found = [key for key in keys if key.startswith(beginning.encode())]
                for first in range(0, len(found), _SCANNED):
                    yield found[first : first + _SCANNED]
                return
        position, server = 0, None
        while True:
            ((position, keys),) = await self.pipeline(
                ("SCAN", position, "MATCH", literal(beginning) + "*", "COUNT", _SCANNED)
            )
            if server not in (None, self._read_from):  # a position has no meaning to another server
                position, server = 0, None
                continue
            server = self._read_from
            yield keys
            if int(position) == 0:
                return

    async def block(self, streams: Sequence[str], after: int, milliseconds: int) -> bool:
        """Wait for an entry of some streams after a position. Returns whether there is one.

        Raises `RedisError`, `OSError`, `TimeoutError`.
        """
        async with asyncio.timeout(self._timeout + milliseconds / 1000):
            after_all: dict[Any, Any] = dict.fromkeys(streams, f"{after}-0")
            return bool(await self._client.xread(after_all, count=1, block=milliseconds))

    async def _asked(self, question: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await answer_within(self._timeout, question)
        except (RedisError, OSError, TimeoutError) as error:
            raise Unavailable(f"The store cannot be read at the moment: {explain(error)}.") from error


def literal(text: str) -> str:
    """A pattern of Redis that matches exactly this text."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in text)
