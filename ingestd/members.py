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
    """An event of a batch: at last it has a result, or a first one whose result is also its own.

    `state` is the unit of work that it is resolved with, from `begin` or `be_recalled` on.
    """

    __slots__ = ("_awaited", "_message_id", "event", "first", "is_done", "recalled", "resolved", "result", "state")

    state: State

    def __init__(self, event: Event) -> None:
        self.event = event
        """Until it is done."""
        self._message_id = event.message_id
        self._awaited: asyncio.Future[None] | None = None
        self.recalled: Recalled | None = None
        self.resolved: Resolved | None = None
        self.first: Member | None = None
        """The one before it in the batch with the same message."""
        self.result: Resolved | Exception | None = None
        self.is_done = False
        """Whether those tied to it may go on."""

    def begin(self, store: Store) -> None:
        """Be resolved with a unit of work of its own."""
        self.state = store.begin(self.event.received_at)

    def be_recalled(self, recalled: Recalled) -> None:
        """Be resolved with what is remembered."""
        self.recalled, self.resolved, self.state = recalled, recalled.resolved, recalled.state

    def be_done(self) -> None:
        """Have those go on that are tied to it; its event is no longer needed, and may take much memory."""
        self.is_done = True
        del self.event
        if self._awaited is not None:
            self._awaited.set_result(None)

    async def wait(self) -> None:
        """Returns when it is done."""
        if self.is_done:
            return
        if self._awaited is None:
            self._awaited = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._awaited)

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
