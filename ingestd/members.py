"""An event of a batch on its way to its result."""

from __future__ import annotations

from typing import NamedTuple

from .events import Event, Session
from .outcomes import Outcome
from .recalling import Recalled
from .resolving import Resolved
from .store import State, Store

__all__ = ["Member", "Stored", "result_of"]


class Stored(NamedTuple):
    """What became of an event that is answered 200."""

    outcome: Outcome
    session: Session


class Member:
    """An event of a batch: at last it has a result, or a first one whose result is also its own."""

    __slots__ = ("_state", "_store", "event", "first", "recalled", "resolved", "result")

    def __init__(self, event: Event, store: Store) -> None:
        self._store = store
        self._state: State | None = None
        self.event = event
        self.recalled: Recalled | None = None
        self.resolved: Resolved | None = None
        self.first: Member | None = None
        """The one before it in the batch with the same message."""
        self.result: Stored | Exception | None = None

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
        if self.event.message_id is None:
            return False
        self.first = messages.get(self.event.message_id)
        return self.first is not None

    def claim(self, messages: dict[str, Member]) -> None:
        """Be the one that later ones of the same message are answered as."""
        if self.event.message_id is not None and self.resolved is not None and self.resolved.record is not None:
            messages[self.event.message_id] = self

    def undo(self, messages: dict[str, Member]) -> None:
        """Be as if it had not been recalled."""
        if self.event.message_id is not None and messages.get(self.event.message_id) is self:
            del messages[self.event.message_id]
        if self.recalled is not None:
            self.recalled.undo(self.event)
        self.recalled = self.resolved = self.result = None


def result_of(member: Member) -> Stored | Exception:
    """Raises nothing: what a member failed with is its result."""
    if member.first is not None:
        first = result_of(member.first)
        return first if isinstance(first, Exception) else Stored(Outcome.DUPLICATE, first.session)
    assert member.result is not None
    return member.result
