"""How a daemon knows its store, and goes on in the one that is there after a loss of data."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

from ingestd.api import times

from .database import Database
from .journal import RedisJournal
from .link import Operation, Then
from .loss import decode_loss
from .store import RedisStore

__all__ = ["Adoption"]

_log = logging.getLogger("ingestd.redis")


class Adoption:
    """After a loss the store gets another id from the first daemon that finds it; the others follow.

    So each daemon, and each connection, notices the loss with its next batch, which is refused.
    """

    def __init__(self, database: Database, journal: RedisJournal, store: RedisStore) -> None:
        self._database = database
        self._journal = journal
        self._store = store
        self._ids: list[str] = []
        """All that the store has had since it was opened, the present one last."""

    async def identify(self, *, serving: bool) -> None:
        """Learn the store's id and its last loss; a daemon gives a new store an id. Raises `Unavailable`."""
        link = self._database.link
        self._store.losses = 0
        if not serving:
            store_id, loss = await link.ask("store_id", 0)
            link.store_id = store_id or ""
        else:
            store_id, loss, last, heartbeats = await link.ask("identify", 0, uuid4().hex)
            link.go_on(store_id, last, heartbeats)
            link.adoption = self._adopt
            self._ids = [store_id]
        self._store.learn(store_id or None, decode_loss(loss))

    def _adopt(self) -> tuple[Operation, Then]:
        link = self._database.link
        return [
            "adopt", times.now(), self._ids[-1], " ".join(self._ids), link.last, link.heartbeats, self._journal.known,
            uuid4().hex, self._journal.places,
        ], self._adopted  # fmt: skip

    def _adopted(self, answer: Any, error: Exception | None) -> None:
        """In one turn, so that nothing is read from the store before all know of the loss."""
        if error is not None:  # it is tried again
            return
        store_id, found, kind, last, heartbeats, version, mended = answer
        if kind:
            loss = decode_loss(found)
            self._ids.append(store_id)
            self._database.memory.clear()
            self._journal.begin_anew(last, version)
            self._store.losses += 1
            self._store.learn(store_id, loss)
            _log.error("%s", loss)
            for name, position, end in mended:
                _log.warning("%s: its place, %d, was beyond the journal's end, and is %d now", name, position, end)
        self._database.link.go_on(store_id, last, heartbeats)
