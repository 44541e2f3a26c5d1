"""The state on Redis: transactions, and a scan of all values of a kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import cast

from ingestd.api import times
from ingestd.api.store import State, Store

from .database import Database
from .journal import RedisJournal
from .loss import Loss, decode_loss
from .state import CheckedState, StepState, Transaction, make_entries

__all__ = ["RedisStore"]

_log = logging.getLogger("ingestd.redis")

_SCANNED = 1000  # keys read at a time


class RedisStore(Store):
    may_conflict = True

    def __init__(self, database: Database, journal: RedisJournal) -> None:
        self._database = database
        self._journal = journal
        self._reporting = asyncio.Lock()

    def learn(self, store_id: str | None, loss: Loss | None) -> None:
        """Note the id of the store, and its last loss."""
        self.store_id = store_id
        self.loss = str(loss) if loss is not None and loss.stands else None

    def begin(self, now: int, *, event: bool = False, step: bool = False) -> Transaction:
        link = self._database.link
        if step:
            return StepState(link, now)
        return CheckedState(link, self._database.entries if event else make_entries(link), now)

    async def commit(self, state: State) -> None:
        await self._journal.commit((), state)

    def discard(self, state: State) -> None:
        cast("Transaction", state).undo()

    async def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        seen: set[bytes] = set()
        position = 0
        match = _literal(f"{self._database.prefix}{kind}:") + "*"
        while True:
            position, keys = (await self._database.pipeline(("SCAN", position, "MATCH", match, "COUNT", _SCANNED)))[0]
            new = [key for key in keys if key not in seen]
            seen.update(new)
            (values,) = await self._database.pipeline(("MGET", *new)) if new else ([],)
            for key, value in zip(new, values, strict=True):
                if value is not None:
                    yield key.decode()[len(self._database.prefix) :], value.decode().partition("|")[2]
            if int(position) == 0:
                return

    async def look_for_loss(self) -> None:
        link = self._database.link
        store_id, loss = await link.ask("store_id", 0)
        if store_id == link.store_id:  # otherwise a loss has happened since the question was sent
            self.learn(store_id, decode_loss(loss))

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
            _log.error("%s", loss)


def _literal(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in text)
