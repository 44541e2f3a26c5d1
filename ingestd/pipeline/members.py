"""An event of a batch on its way to its result, where that is some trips away."""

from __future__ import annotations

from ingestd.api.events import Event
from ingestd.api.outcomes import Outcome
from ingestd.api.store import State, Store

from .recalling import Recalled
from .resolver import Resolved

__all__ = ["Member", "result_of"]


class Member:
    """An event of a batch: at last it has a result, or a first one whose result is also its own.

    `state` is the unit of work that it is resolved with, from `begin` or `be_recalled` on.
    """

    __slots__ = ("_message_id", "event", "first", "recalled", "resolved", "result", "state")

    state: State

    def __init__(self, event: Event) -> None:
        self.event = event
        self._message_id = event.message_id
        self.recalled: Recalled | None = None
        self.resolved: Resolved | None = None
        self.first: Member | None = None
        """The one before it in the batch with the same message."""
        self.result: Resolved | Exception | None = None

    def begin(self, store: Store) -> None:
        """Be resolved with a unit of work of its own."""
        self.state = store.begin(self.event.received_at)

    def be_recalled(self, recalled: Recalled) -> None:
        """Be resolved with what is remembered."""
        self.recalled, self.resolved, self.state = recalled, recalled.resolved, recalled.state

    @property
    def is_recalled(self) -> bool:
        """Whether it is known what becomes of it if all is still as it is remembered."""
        return self.recalled is not None or self.result is not None or self.first is not None

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
        self.first = self.recalled = self.resolved = self.result = None


def result_of(member: Member) -> Resolved | Exception:
    """Raises nothing: what a member failed with is its result."""
    if member.first is not None:
        first = result_of(member.first)
        return first if isinstance(first, Exception) else Resolved(Outcome.DUPLICATE, first.session)
    assert member.result is not None
    return member.result
