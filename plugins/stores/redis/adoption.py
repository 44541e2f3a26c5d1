"""Adoption of a store that has lost data: the daemons notice the loss, and continue with the store that is there."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from ingestd.api import times
from ingestd.api.errors import Unavailable
from ingestd.support.periodic import TIMING

from .database import Database
from .journal import RedisJournal
from .operations import Operation, Then
from .server_clock import clock_ahead
from .store import Loss, RedisStore, decode_loss

__all__ = ["Adoption"]

_log = logging.getLogger("ingestd.redis")


class Adoption:
    """After a loss the first daemon that finds it gives the store a new id. The other daemons follow.

    The next batch of each daemon and each connection names the old id and is refused. So every daemon notices.
    """

    def __init__(self, database: Database, journal: RedisJournal, store: RedisStore) -> None:
        self._database = database
        self._journal = journal
        self._store = store
        self._ids: list[str] = []
        """All ids of the store since it was opened, the present one last."""
        self._waits_until: float | None = None
        """Until when it waits for a missing part of the store."""

    async def identify(self, *, serving: bool) -> None:
        """Learn the id of the store and its last loss. A daemon gives a new store an id. Raises `Unavailable`."""
        link = self._database.link
        self._store.losses = 0
        if not serving:
            store_id, loss = await link.ask("store_id", 0)
            if not await link.ask("is_whole", 0):
                raise Unavailable("The store has lost a part of its keys. A daemon continues with what is left.")
            link.store_id = store_id or ""
        else:
            asked_at = times.now()
            store_id, loss, last, heartbeats, mended, clock = await link.ask("identify", asked_at, uuid4().hex)
            self._store.clock_ahead = clock_ahead(clock, asked_at)
            if mended is not False:
                _tell(self._database.link.label, decode_loss(loss), mended)
            link.go_on(store_id, last, heartbeats)
            link.adoption = self._adopt
            self._ids = [store_id]
        self._store.learn(store_id or None, decode_loss(loss))

    def _adopt(self) -> tuple[Operation, Then]:
        link = self._database.link
        return [
            "adopt", times.now(), self._ids[-1], " ".join(self._ids), link.last, link.heartbeats, self._journal.known,
            uuid4().hex, self._journal.needed_cursors, self._waits(),
        ], self._adopted  # fmt: skip

    def _waits(self) -> bool:
        """Whether a missing part of the store may still come: it may be on another node of the cluster."""
        if self._database.slot is None:
            return False
        return self._waits_until is None or time.monotonic() < self._waits_until

    def _adopted(self, answer: Any, error: Exception | None) -> None:
        """Runs in one turn, so that nothing reads the store before all parts of the daemon know of the loss."""
        if error is not None:  # the probe tries again
            return
        if answer is False:
            if self._waits_until is None:
                self._waits_until = time.monotonic() + TIMING.redis_slot_repair
                _log.warning(
                    "%sa part of its keys is missing; a move may be unfinished, so it waits %g s for the rest",
                    self._database.link.label, TIMING.redis_slot_repair,
                )  # fmt: skip
            return
        self._waits_until = None
        store_id, found, kind, last, heartbeats, version, mended = answer
        if kind:
            loss = decode_loss(found)
            self._ids.append(store_id)
            self._database.forget()
            self._journal.begin_anew(last, version)
            self._store.losses += 1
            self._store.learn(store_id, loss)
            _tell(self._database.link.label, loss, mended)
        self._database.link.go_on(store_id, last, heartbeats)


def _tell(label: str, loss: Loss | None, mended: Sequence[tuple[str, int, int]]) -> None:
    """`mended` are cursors, each with its former and its present position."""
    _log.error("%s%s", label, loss)
    for name, at, end in mended:
        _log.warning("%s%s: its cursor, %d, was beyond the journal's end, and is %d now", label, name, at, end)
