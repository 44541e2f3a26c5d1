"""The state on Redis: transactions, a scan of all values of a kind, and a loss of data."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, cast

import msgspec

from ingestd.api import times
from ingestd.api.check_result import show_age
from ingestd.api.errors import CommandError
from ingestd.api.store import State, Store, StoreSize, kinds_of
from ingestd.api.times import format_time

from .database import Database
from .journal import RedisJournal
from .state import CheckedState, StepState, Transaction, make_entries

__all__ = ["Loss", "RedisStore", "decode_loss"]

_log = logging.getLogger("ingestd.redis")

_AT_ONCE = 250  # entries that get an end in one batch: Redis does nothing else meanwhile
_DIGEST = re.compile(r"[0-9a-f]{32}")

_KINDS = {
    "empty": "came back empty",
    "older": "came back with older content",
    "other": "is another one",
    "partial": "has lost a part of its keys",
}


class Loss(msgspec.Struct, frozen=True):
    """A loss in the form of batch.lua. The positions are 0 if the journal is not in this store."""

    kind: str
    """The end of a sentence that begins with "the store", or a key of `_KINDS`, which batch.lua uses."""
    at: int
    """Time of discovery, in milliseconds."""
    known: int
    """The newest position that the daemon knew before."""
    found: int
    """The newest position found."""
    stands: bool
    before: str

    def __str__(self) -> str:
        text = f"the store {_KINDS.get(self.kind, self.kind)} (found {format_time(self.at)})"
        if self.kind in _KINDS and (self.known or self.found):
            text += f": its journal ends at {self.found}, and ended at {self.known} before"
        return text


def decode_loss(found: Any) -> Loss | None:
    """Convert an answer of batch.lua. It is false without a loss."""
    return msgspec.convert(found, Loss) if found else None


class RedisStore(Store):
    may_conflict = True

    def __init__(self, database: Database, journal: RedisJournal) -> None:
        self._database = database
        self._journal = journal
        self._reporting = asyncio.Lock()
        self.beaten: Hashable = None
        """What the last beat told: equal as long as nothing has changed but for new records.

        None on a single Redis, where a look costs little.
        """
        self.clock_jump = 0
        """Milliseconds by which the server's clock has jumped ahead, until that is reported as a loss."""

    def learn(self, store_id: str | None, loss: Loss | None) -> None:
        """Note the id of the store, and its last loss."""
        self.store_id = store_id
        self.loss = str(loss) if loss is not None and loss.stands else None

    @property
    def placement(self) -> int:  # the link needs it for each transaction
        return self._database.link.placement

    @placement.setter
    def placement(self, version: int) -> None:
        self._database.link.placement = version

    @property
    def tenants(self) -> int | None:  # the link needs it for the log
        return self._database.link.tenants

    @tenants.setter
    def tenants(self, number: int | None) -> None:
        self._database.link.tenants = number

    @property
    def version(self) -> Hashable:
        if self.beaten is None or self._database.link.problem is not None or self.clock_jump:
            return None
        return self.beaten, self._journal.known

    async def fence(self, placement: int) -> None:
        if not await self._database.link.ask("fence", 0, placement):
            raise CommandError("the clock of this machine is behind the last move of a tenant; set it right")

    def begin(self, now: int, *, event: bool = False, step: bool = False) -> Transaction:
        link = self._database.link
        if step:
            return StepState(link, now)
        return CheckedState(link, self._database.entries if event else make_entries(link), now)

    async def commit(self, state: State) -> None:
        await self._journal.commit_state(state)

    def discard(self, state: State) -> None:
        cast("Transaction", state).undo()

    async def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        for beginning in kinds_of(kind):
            async for entry in self._scan(f"{beginning}:"):
                yield entry

    async def _scan(self, beginning: str) -> AsyncIterator[tuple[str, str]]:
        seen: set[str] = set()
        async for names in self._database.names(beginning):
            new = [name for name in names if name not in seen]
            seen.update(new)
            keys = [f"{self._database.prefix}{name}" for name in new]
            (values,) = await self._database.pipeline(("MGET", *keys)) if new else ([],)
            for name, value in zip(new, values, strict=True):
                if value is not None:
                    yield name, value.decode().partition("|")[2]

    async def size(self) -> StoreSize:
        """`used` includes other data in the same Redis. On a cluster, it is the share of the keys."""
        fields = await self._database.link.ask("field_bytes", times.now())
        return await self._database.size(fields)

    async def set_ends(self, kind: str, end: Callable[[str], int]) -> None:
        async for keys in self._database.names(f"{kind}:"):
            ends = [(key, end(key)) for key in keys if _DIGEST.fullmatch(key.partition(":")[2])]
            for first in range(0, len(ends), _AT_ONCE):
                some = ends[first : first + _AT_ONCE]
                await self._database.link.ask("set_ends", times.now(), some, weight=len(some))

    async def look_for_loss(self) -> None:
        link = self._database.link
        store_id, loss = await link.ask("store_id", 0)
        if store_id == link.store_id:  # otherwise a loss has happened since the question was sent
            self.learn(store_id, decode_loss(loss))
        if jump := self.clock_jump:  # of a clock that was behind, only entries stored meanwhile have lost some life
            lost = f"may have lost all entries that end within {show_age(jump)}: the clock of its server jumped ahead"
            await self.report_loss(lost)
            self.clock_jump -= jump

    async def clear_loss(self) -> bool:
        cleared = bool(await self._database.link.ask("clear_loss", 0))
        self.loss = None
        return cleared

    async def report_loss(self, what: str) -> None:
        async with self._reporting:  # several tasks may find the same loss
            if self.loss is not None:
                return
            loss = decode_loss(await self._database.link.ask("report_loss", times.now(), what, self.store_id or ""))
            self.losses += 1
            self.learn(self.store_id, loss)
            _log.error("%s%s", self._database.link.label, loss)
