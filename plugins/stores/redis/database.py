"""One Redis as this process uses it: a link for batches of operations, and more connections for reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from redis import asyncio as aioredis
from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

from ingestd.api.errors import Unavailable

from .durability import Durability, ask
from .link import Link, LinkOptions, explain
from .sentinel import SentinelPool
from .state import make_entries

__all__ = ["Database"]

_T = TypeVar("_T")


class Database:
    """Shared by journal and store."""

    def __init__(self, pool: ConnectionPool, options: LinkOptions) -> None:
        self.prefix = options.prefix
        self.name = uuid4().hex
        """A new name with each opening. It is the holder of leases."""
        self._pool = pool
        self._client = aioredis.Redis(connection_pool=pool)
        self._timeout = options.timeout
        self._make_link = partial(Link, pool.make_connection, options)
        self.link = self._make_link()
        self.entries = make_entries(self.link)
        """The cache of all transactions of events."""
        self.sentinels = pool.sentinels if isinstance(pool, SentinelPool) else None

    async def open(self) -> Durability:
        """Raises `RedisError`, `OSError`, `TimeoutError`."""
        self.name = uuid4().hex
        self.link = self._make_link()
        self.forget()
        async with asyncio.timeout(self._timeout):
            # Connect first: a server may refuse to answer the questions below, but the connection must work.
            await self._pool.release(await self._pool.get_connection())
            return await ask(self._client)

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
        return await self._asked(ask(self._client))

    async def pipeline(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The answers to reading commands. Raises `Unavailable`, also if another store answers."""
        if self.link.problem is not None:
            raise Unavailable(f"The store cannot be read at the moment: {self.link.problem}.")

        async def ask_all() -> list[Any]:
            connection = await self._pool.get_connection()
            try:
                asked = [("GET", f"{self.prefix}store-id"), *commands]
                await connection.send_packed_command(connection.pack_commands(asked))
                store_id, *answers = [await connection.read_response() for _ in asked]
            except BaseException:  # unread answers may be left on the connection
                await connection.disconnect(nowait=True)
                raise
            finally:
                await self._pool.release(connection)
            if known and store_id != known:
                raise Unavailable("The store cannot be read at the moment: it has lost data.")
            return answers

        known = self.link.store_id.encode()
        return await self._asked(ask_all())

    async def block(self, stream: str, after: int, milliseconds: int) -> bool:
        """Wait for an entry of a stream after a position. Returns whether there is one.

        Raises `RedisError`, `OSError`, `TimeoutError`.
        """
        found = await self._client.xread({stream: f"{after}-0"}, count=1, block=milliseconds)
        return bool(found)

    async def _asked(self, question: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(self._timeout):
                return await question
        except (RedisError, OSError, TimeoutError) as error:
            raise Unavailable(f"The store cannot be read at the moment: {explain(error)}.") from error
