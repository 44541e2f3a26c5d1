"""The split journal: a journal behind another URL than the state. It has two commits, and one daemon.

The commit of the state comes first, then the commit of the journal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError, ConfigError, LeaseLost, Unavailable, WriteConflict
from ingestd.api.events import Record
from ingestd.api.journal import Append, Cursor, Journal, JournalStats, RecordInfo, Start
from ingestd.api.store import State, Store, StoredValue, state_key
from ingestd.support.ids import random_uuid
from ingestd.support.periodic import TIMING, every

__all__ = ["Ownership", "SplitJournal"]

_log = logging.getLogger("ingestd.apart")


class _Step(msgspec.Struct, array_like=True):
    """The records of a consumer's step and its new cursor position, noted in the state before the journal gets them.

    `behind` is the id of the step before it. While the journal lacks this step, `behind` is its last step.
    """

    behind: str
    id: str
    position: int
    records: list[tuple[str, int, bytes]]


_STEPS = StoredValue("consumer-step", _Step)
"""The last step of each consumer, in the state."""


class SplitJournal(Journal):
    """A journal with its state elsewhere: `store` has the state, `home` is the store beside the journal.

    The state of an event becomes durable first, then its record. A failed append may leave a session or a link in the
    state. That is harmless: the event is refused, and finds them when it is sent again.

    A consumer's step must not be repeated, because it would find its own writes in the state. So the commit of the
    state contains the writes and a note of the step. The commit of the journal contains the records and the id of the
    step. If the second commit fails, or the daemon ends before it, the journal gets the noted step before the consumer
    continues.
    """

    def __init__(self, journal: Journal, home: Store, store: Store) -> None:
        self._journal = journal
        self._home = home
        self._store = store
        self._last_steps: dict[str, str] = {}
        """The id of the last step in the journal, for each consumer whose cursor is acquired."""

    async def append(self, appends: Sequence[Append], then: Callable[[Sequence[Exception | None]], None]) -> None:
        kept = await asyncio.gather(*(self._store.commit(each.state) for each in appends), return_exceptions=True)
        errors = [each if isinstance(each, Exception) else None for each in kept]
        # One call for all, so that no record overtakes a record whose state took longer.
        rest = [index for index, error in enumerate(errors) if error is None]

        def end(entered: Sequence[Exception | None]) -> None:
            for index, error in zip(rest, entered, strict=True):
                errors[index] = error
            then(errors)

        given = [appends[index] for index in rest]
        await self._journal.append(
            [Append(self._home.begin(each.state.now), each.record, each.idempotency_key) for each in given], end
        )

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        if cursor is not None:
            return await self._append_step(records, state, cursor)
        await self._store.commit(state)
        return await self._journal.commit(records, self._home.begin(state.now))

    async def _append_step(self, records: Sequence[Record], state: State, cursor: Cursor) -> int:
        given = [(record.type, record.at, record.body) for record in records]
        step = _Step(self._last_steps[cursor.name], random_uuid(), cursor.position, given)
        await _STEPS.save(state, step, cursor.name)
        try:
            await self._store.commit(state)
            # The state is durable, so a power failure must not undo the rest of the step.
            return await self._enter(step, cursor._replace(deferrable=False))
        except Unavailable as error:
            if not await self._may_be_noted(step, cursor.name):
                raise
            raise LeaseLost("its last step is not in the journal yet") from error

    async def _may_be_noted(self, step: _Step, name: str) -> bool:
        try:
            noted = await self._read(name)
        except Unavailable:
            return True
        return noted is not None and noted.id == step.id

    async def _enter(self, step: _Step, cursor: Cursor) -> int:
        """Append a noted step to the journal."""
        home = self._home.begin(times.now(), step=True)
        try:
            await home.put(_entered(cursor.name), step.id)
            position = await self._journal.commit([Record(*record) for record in step.records], home, cursor)
        except BaseException:
            self._home.discard(home)
            raise
        self._last_steps[cursor.name] = step.id
        return position

    async def _read(self, name: str) -> _Step | None:
        return await _STEPS.load(self._store.begin(times.now()), name)

    async def find_duplicate(self, key: str, state: State) -> str | None:
        return await self._journal.find_duplicate(key, self._home.begin(state.now))

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        return await self._journal.read(after, limit)

    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        await self._journal.wait(after, cursor)

    async def last(self) -> int:
        return await self._journal.last()

    async def ensure_cursor(self, name: str, start: Start) -> int:
        position = await self._journal.ensure_cursor(name, start)
        # This must precede all appends, because new records may get the positions that the step was made from.
        await self._bound_step(name, await self._journal.last())
        return position

    async def _bound_step(self, name: str, last: int) -> None:
        """Limit the position of a noted step to the end of the journal, which may have become shorter."""
        state = self._store.begin(times.now())
        step = await _STEPS.load(state, name)
        if step is None or step.position <= last:
            return
        _log.warning(
            "%s: the journal is older than the state: it ends at %d, and records up to %d had been processed",
            name, last, step.position,
        )  # fmt: skip
        await _STEPS.save(state, msgspec.structs.replace(step, position=last), name)
        await self._store.commit(state)

    async def acquire_cursor(self, name: str, start: Start) -> Cursor:
        cursor = await self._journal.acquire_cursor(name, start)
        last = await self._last_step(name)
        if last is None:
            # A new id matches no noted step, so a step that was noted for another journal is not appended to this one.
            last = random_uuid()
            home = self._home.begin(times.now())
            await home.put(_entered(name), last)
            await self._home.commit(home)
        self._last_steps[name] = last
        step = await self._read(name)
        if step is not None and step.behind == last:
            # Trimming may have moved the cursor beyond the step meanwhile.
            cursor = cursor._replace(position=max(cursor.position, step.position))
            await self._enter(step, cursor)
        elif step is not None and step.id != last and step.position < cursor.position:
            _log.warning(
                "%s: the state is older than the journal: its data about the records %d to %d is lost",
                name, step.position + 1, cursor.position,
            )  # fmt: skip
        return cursor

    async def _last_step(self, name: str) -> str | None:
        return await self._home.begin(times.now()).get(_entered(name))

    async def recover(self) -> None:
        """Append the noted steps of a killed daemon to the journal, unless a daemon runs.

        For commands that must see all records. Raises `Unavailable`.
        """
        for cursor in await self._journal.cursors():
            step = await self._read(cursor.name)
            if step is not None and step.behind == await self._last_step(cursor.name):
                position = max(cursor.position, step.position)
                with suppress(CommandError):  # a running daemon has the journal, and appends the step
                    await self._enter(step, cursor._replace(position=position))

    async def release(self, cursor: Cursor) -> None:
        await self._journal.release(cursor)

    async def replace(self, changes: Sequence[tuple[Record, bytes]]) -> int:
        return await self._journal.replace(changes)

    async def cursors(self) -> Sequence[Cursor]:
        return await self._journal.cursors()

    async def extent(self) -> JournalStats:
        return await self._journal.extent()

    async def outlines(self, after: int, limit: int) -> Sequence[RecordInfo]:
        return await self._journal.outlines(after, limit)

    async def trim(self, up_to: int, limit: int) -> int:
        return await self._journal.trim(up_to, limit)


def _entered(name: str) -> str:
    """The key under which the store beside the journal has the id of the consumer's last step in the journal."""
    return state_key("entered-step", "", name)


class _Owner(msgspec.Struct, array_like=True, frozen=True):
    """The owner of a state: a journal, and the process that serves it. `renewal` makes each entry a different text."""

    journal: str
    host: str
    pid: int
    renewal: str


_decode_owner = msgspec.json.Decoder(_Owner).decode

_OWNER = state_key("journal-owner", "", "")
_JOURNAL_ID = state_key("journal-id", "", "")
_STORE_ID = state_key("store-id", "", "")


class Ownership:
    """Ensures that a state serves one journal at a time, because daemons with other journals may reach the state.

    `home` is the store beside the journal of this daemon. A daemon renews its entry every three seconds. It counts as
    dead if the entry has not changed for ten seconds. No time in the entry is compared, so clocks need not agree.
    An entry of the same journal is replaced without waiting, because only one daemon can open a journal.
    """

    def __init__(self, store: Store, home: Store) -> None:
        self._store = store
        self._home = home
        self._silence = TIMING.ownership_silence
        self._journal = ""
        self._ours: str | None = None
        """The entry as this daemon has written it; None while this daemon is not the owner."""

    async def take(self) -> None:
        """Become the owner. Raises `ConfigError` if a daemon with another journal owns the state, and `Unavailable`."""
        self._journal = await self._journal_id()
        loop = asyncio.get_running_loop()
        found = await self._read()
        deadline = loop.time() + self._silence
        while not await self._may_take(found, is_silent=loop.time() >= deadline):
            await asyncio.sleep(TIMING.ownership / 10)
            before, found = found, await self._read()
            if found is not None and found != before and _decode_owner(found).journal != self._journal:
                raise ConfigError(_told(found))

    async def _may_take(self, found: str | None, *, is_silent: bool) -> bool:
        """Take the state unless the daemon of another journal may be alive. Return whether this daemon owns it now."""
        if found is not None and _decode_owner(found).journal != self._journal and not is_silent:
            return False
        return await self._swap(found)

    async def keep(self) -> None:
        """Renew the entry while the daemon runs. Raises `ConfigError` if another daemon has taken the state."""
        await every("ownership", self._renew, may_fail=Unavailable)  # the back end logs its failure

    async def _renew(self) -> None:
        found = await self._read()
        # The entry is None if the state was wiped. It is an older entry of this daemon if the state was restored.
        if found is None or self._is_ours(_decode_owner(found)):
            await self._swap(found)
        else:
            self._ours = None
            raise ConfigError(_told(found))

    def _is_ours(self, owner: _Owner) -> bool:
        # Another process may have a copy of this journal, with the same id.
        return (owner.journal, owner.host, owner.pid) == (self._journal, socket.gethostname(), os.getpid())

    async def release(self) -> None:
        """Give up the state, so that the next daemon can take it at once. Raises `Unavailable`."""
        if self._ours is not None and await self._read() == self._ours:
            state = self._store.begin(times.now())
            await state.delete(_OWNER)
            await self._store.commit(state)
        self._ours = None

    async def _read(self) -> str | None:
        return await self._store.begin(times.now()).get(_OWNER)

    async def _swap(self, found: str | None) -> bool:
        owner = _Owner(self._journal, socket.gethostname(), os.getpid(), random_uuid())
        text = msgspec.json.encode(owner).decode()
        state = self._store.begin(times.now())
        is_ours = await state.swap(_OWNER, found, text)
        try:
            await self._store.commit(state)
        except WriteConflict:  # another daemon was faster
            return False
        if is_ours:
            self._ours = text
        return is_ours

    async def compare_store(self) -> None:
        """Report a loss if the journal was last used with another store. Raises `Unavailable`."""
        remembered = await self._home.begin(times.now()).get(_STORE_ID)
        if remembered is not None and remembered != self._store.store_id:
            await self._store.report_loss("is another one than before")
        await self.remember_store()

    async def remember_store(self) -> None:
        """Record the present store beside the journal. Raises `Unavailable`."""
        state = self._home.begin(times.now())
        if self._store.store_id is not None and await state.get(_STORE_ID) != self._store.store_id:
            await state.put(_STORE_ID, self._store.store_id)
        await self._home.commit(state)

    async def _journal_id(self) -> str:
        state = self._home.begin(times.now())
        await state.swap(_JOURNAL_ID, None, random_uuid())
        await self._home.commit(state)
        found = await self._home.begin(times.now()).get(_JOURNAL_ID)
        assert found is not None
        return found


def _told(found: str) -> str:
    owner = _decode_owner(found)
    return (
        f"[journal] url: the state at [store] url is in use by process {owner.pid} on {owner.host}, which has another"
        " journal, and a state with a separate journal serves one daemon only; stop that daemon, or give this daemon"
        " another [store] url; if the daemons are to share the store, leave [journal] url out of both"
    )
