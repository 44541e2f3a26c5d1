"""An event of a batch on its way to its result."""

from __future__ import annotations

import asyncio

from .events import Event
from .outcomes import Outcome
from .recalling import Recalled
from .resolving import Resolved
from .store import State, Store

__all__ = ["Member", "result_of"]


class Member:
    """An event of a batch: at last it has a result, or a first one whose result is also its own."""

    __slots__ = (
        "_awaited",
        "_event",
        "_message_id",
        "_state",
        "_store",
        "first",
        "is_done",
        "recalled",
        "resolved",
        "result",
    )

    def __init__(self, event: Event, store: Store) -> None:
        self._store = store
        self._state: State | None = None
        self._event: Event | None = event
        self._message_id = event.message_id
        self._awaited: asyncio.Future[None] | None = None
        self.recalled: Recalled | None = None
        self.resolved: Resolved | None = None
        self.first: Member | None = None
        """The one before it in the batch with the same message."""
        self.result: Resolved | Exception | None = None
        self.is_done = False
        """Whether those tied to it may go on."""

    @property
    def event(self) -> Event:
        assert self._event is not None
        return self._event

    def be_done(self) -> None:
        """Have those go on that are tied to it; its event is no longer needed, and may take much memory."""
        self.is_done = True
        self._event = None
        if self._awaited is not None:
            self._awaited.set_result(None)

    async def wait(self) -> None:
        """Returns when it is done."""
        if self.is_done:
            return
        if self._awaited is None:
            self._awaited = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._awaited)

    @property
    def state(self) -> State:
        """The unit of work that it is resolved with."""
        if self.recalled is not None:
            return self.recalled.state
        if self._state is None:
            self._state = self._store.begin(self.event.received_at)
        return self._state

    def repeats(self, messages: dict[str, Member]) -> bool:
        """Whether it is answered as an earlier one of the batch."""
        if self._message_id is None:
            return False
        self.first = messages.get(self._message_id)
        return self.first is not None

    def claim(self, messages: dict[str, Member]) -> None:
        """Be the one that later ones of the same message are answered as."""
        if self._message_id is not None and self.resolved is not None and self.resolved.record is not None:
            messages[self._message_id] = self

    def undo(self, messages: dict[str, Member]) -> None:
        """Be as if it had not been recalled."""
        if self._message_id is not None and messages.get(self._message_id) is self:
            del messages[self._message_id]
        if self.recalled is not None:
            self.recalled.undo(self.event)
        self.recalled = self.resolved = self.result = None


def result_of(member: Member) -> Resolved | Exception:
    """Raises nothing: what a member failed with is its result."""
    if member.first is not None:
        first = result_of(member.first)
        return first if isinstance(first, Exception) else Resolved(Outcome.DUPLICATE, first.session)
    assert member.result is not None
    return member.result
