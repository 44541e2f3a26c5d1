"""A journal that lives apart from the state, behind another URL: two commits, the state's first; and one daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError, ConfigError, LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.ids import random_uuid
from ingestd.api.journal import Append, Cursor, IdempotencyKey, Journal, JournalStats, RecordInfo, Start
from ingestd.api.store import State, Store, state_key

__all__ = ["Ownership", "SplitJournal"]

_log = logging.getLogger("ingestd.apart")


class _Step(msgspec.Struct, array_like=True):
    """What a consumer's step appends and where its place moves, kept with the state until it is in the journal.

    `behind` is the id of the step before it: the last one that is in the journal, for as long as this one is not.
    """

    behind: str
    id: str
    position: int
    records: list[tuple[str, int, bytes]]


_decode_step = msgspec.json.Decoder(_Step).decode


class SplitJournal(Journal):
    """`store` is where the units' state lives, `home` the store beside the journal itself.

    What a failed append leaves behind in the state (a session, a link) is harmless: the event is refused, and
    sent again it finds them. A consumer's step is noted in the state, in one commit with what it wrote; and the
    journal's commit of the step tells which one it was. Where that commit fails, or the daemon ends before it, the
    step is in the journal before the consumer goes on: done again, it would find what it has written itself.
    """

    def __init__(self, journal: Journal, home: Store, store: Store) -> None:
        self._journal = journal
        self._home = home
        self._store = store
        self._last_steps: dict[str, str] = {}
        """Of each consumer that is held, the id of the last step in the journal."""

    async def append(
        self, records: Sequence[Record], state: State, cursor: Cursor | None = None, claim: IdempotencyKey | None = None
    ) -> int:
        if cursor is not None:
            return await self._append_step(records, state, cursor)
        await self._store.commit(state)
        return await self._journal.append(records, self._home.begin(state.now), claim=claim)

    async def append_each(self, appends: Sequence[Append]) -> list[Exception | None]:
        kept = await asyncio.gather(*(self._store.commit(each.state) for each in appends), return_exceptions=True)
        answers = [each if isinstance(each, Exception) else None for each in kept]
        # All at once, so that none overtakes another whose state took longer.
        rest = [place for place, error in enumerate(answers) if error is None]
        entered = await self._journal.append_each(
            [
                Append(each.record, self._home.begin(each.state.now), each.claim)
                for each in [appends[place] for place in rest]
            ]
        )
        for place, error in zip(rest, entered, strict=True):
            answers[place] = error
        return answers

    async def _append_step(self, records: Sequence[Record], state: State, cursor: Cursor) -> int:
        given = [(record.type, record.at, record.body) for record in records]
        step = _Step(self._last_steps[cursor.name], random_uuid(), cursor.position, given)
        await state.put(_noted(cursor.name), msgspec.json.encode(step).decode())
        try:
            await self._store.commit(state)
            # Its state is there to stay, so it must not be done again.
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
        """Have the journal take a step that is noted."""
        home = self._home.begin(times.now(), step=True)
        try:
            await home.put(_entered(cursor.name), step.id)
            position = await self._journal.append([Record(*record) for record in step.records], home, cursor)
        except BaseException:
            self._home.discard(home)
            raise
        self._last_steps[cursor.name] = step.id
        return position

    async def _read(self, name: str) -> _Step | None:
        noted = await self._store.begin(times.now()).get(_noted(name))
        return None if noted is None else _decode_step(noted)

    async def claimed(self, key: str, state: State) -> str | None:
        return await self._journal.claimed(key, self._home.begin(state.now))

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        return await self._journal.read(after, limit)

    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        await self._journal.wait(after, cursor)

    async def last(self) -> int:
        return await self._journal.last()

    async def ensure_cursor(self, name: str, start: Start) -> int:
        position = await self._journal.ensure_cursor(name, start)
        # Before anything is appended: records to come would have the positions of those that the step was made of.
        await self._bound_step(name, await self._journal.last())
        return position

    async def _bound_step(self, name: str, last: int) -> None:
        """A step that is noted does not move the place beyond the end of a journal that has become shorter."""
        state = self._store.begin(times.now())
        noted = await state.get(_noted(name))
        step = None if noted is None else _decode_step(noted)
        if step is None or step.position <= last:
            return
        _log.warning(
            "%s: the journal is older than the state: it ends at %d, and records up to %d had been processed",
            name, last, step.position,
        )  # fmt: skip
        await state.put(_noted(name), msgspec.json.encode(msgspec.structs.replace(step, position=last)).decode())
        await self._store.commit(state)

    async def acquire_cursor(self, name: str, start: Start) -> Cursor:
        cursor = await self._journal.acquire_cursor(name, start)
        last = await self._last_step(name)
        if last is None:
            # A step that is noted of another journal is behind none of this one's.
            last = random_uuid()
            home = self._home.begin(times.now())
            await home.put(_entered(name), last)
            await self._home.commit(home)
        self._last_steps[name] = last
        step = await self._read(name)
        if step is not None and step.behind == last:
            # Trimming may have moved the place beyond it meanwhile.
            cursor = cursor._replace(position=max(cursor.position, step.position))
            await self._enter(step, cursor)
        elif step is not None and step.id != last and step.position < cursor.position:
            _log.warning(
                "%s: the state is older than the journal: what it remembered of the records %d to %d is lost",
                name, step.position + 1, cursor.position,
            )  # fmt: skip
        return cursor

    async def _last_step(self, name: str) -> str | None:
        return await self._home.begin(times.now()).get(_entered(name))

    async def recover(self) -> None:
        """Have the journal take what a daemon that was killed has left noted, unless a daemon runs.

        For a command that must see all there is. Raises `Unavailable`.
        """
        for cursor in await self._journal.cursors():
            step = await self._read(cursor.name)
            if step is not None and step.behind == await self._last_step(cursor.name):
                position = max(cursor.position, step.position)
                with suppress(CommandError):  # a daemon has the journal, and does it by itself
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


def _noted(name: str) -> str:
    """Where the state has a consumer's last step."""
    return state_key("consumer-step", "", name)


def _entered(name: str) -> str:
    """Where the store beside the journal has the id of the last one that is in the journal."""
    return state_key("entered-step", "", name)


class _Owner(msgspec.Struct, array_like=True, frozen=True):
    """The journal that a state belongs to at present, which process says so, and what makes each time another text."""

    journal: str
    host: str
    pid: int
    renewal: str


_decode_owner = msgspec.json.Decoder(_Owner).decode

_OWNER = state_key("journal-owner", "", "")
_JOURNAL_ID = state_key("journal-id", "", "")
_STORE_ID = state_key("store-id", "", "")


class Ownership:
    """That a state belongs to one journal at a time: several daemons may reach the state, each with its own journal.

    Seen from the journal's side: `home` is the store beside it. A daemon that says nothing for `silence` seconds
    is dead; each says something every `pause` seconds. These are told by whether the entry changes, not by its
    times, so that clocks need not agree. One journal's daemon that was killed need not be waited for: another one
    could not have opened that journal.
    """

    def __init__(self, store: Store, home: Store, *, silence: float = 10.0, pause: float = 3.0) -> None:
        self._store = store
        self._home = home
        self._silence = silence
        self._pause = pause
        self._journal = ""
        self._ours: str | None = None
        """The entry as we have written it; None while it is not ours."""

    async def take(self) -> None:
        """Raises `ConfigError` where a daemon with another journal has this state, and `Unavailable`."""
        self._journal = await self._journal_id()
        loop = asyncio.get_running_loop()
        found = await self._read()
        deadline = loop.time() + self._silence
        while not await self._may_take(found, is_silent=loop.time() >= deadline):
            await asyncio.sleep(self._pause / 10)
            before, found = found, await self._read()
            if found is not None and found != before and _decode_owner(found).journal != self._journal:
                raise ConfigError(_told(found))

    async def _may_take(self, found: str | None, *, is_silent: bool) -> bool:
        """Take it unless another's daemon may still be alive; whether it is ours now."""
        if found is not None and _decode_owner(found).journal != self._journal and not is_silent:
            return False
        return await self._swap(found)

    async def keep(self) -> None:
        """Say that this daemon is alive, for its whole life. Raises `ConfigError` where another has taken the state."""
        while True:
            await asyncio.sleep(self._pause)
            with suppress(Unavailable):  # the back end tells of it
                await self._renew()

    async def _renew(self) -> None:
        found = await self._read()
        # None where the state has been wiped. An older one of ours where the state has been put back to what it was.
        if found is None or self._is_ours(_decode_owner(found)):
            await self._swap(found)
        else:
            self._ours = None
            raise ConfigError(_told(found))

    def _is_ours(self, owner: _Owner) -> bool:
        # Another process may have the same journal all the same: a copy of it.
        return (owner.journal, owner.host, owner.pid) == (self._journal, socket.gethostname(), os.getpid())

    async def release(self) -> None:
        """Let the next one take it at once. Raises `Unavailable`."""
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
        await self._store.commit(state)
        if is_ours:
            self._ours = text
        return is_ours

    async def compare_store(self) -> None:
        """Report a loss where the journal was last used with another store. Raises `Unavailable`."""
        remembered = await self._home.begin(times.now()).get(_STORE_ID)
        if remembered is not None and remembered != self._store.store_id:
            await self._store.report_loss("is another one than before")
        await self.remember_store()

    async def remember_store(self) -> None:
        """Raises `Unavailable`."""
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
        f"[journal] url: the state at [store] url is in use by process {owner.pid} on {owner.host}, whose journal is"
        " another one, and with its journal elsewhere a state has one daemon; stop that one, or give this one a"
        " [store] url of its own, or leave [journal] url out of both, where several daemons are to share the store"
    )
