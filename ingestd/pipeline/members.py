"""The progress of one event of a batch on a distant store."""

from __future__ import annotations

from ingestd.api.events import Event
from ingestd.api.outcomes import Outcome
from ingestd.api.store import State, Store

from .recalling import Recalled
from .resolver import Resolved

__all__ = ["Member", "result_of"]


class Member:
    """An event of a batch. In the end it has a `result`, or a `first` event whose result it shares.

    `state` is the event's transaction, which `begin` or `be_recalled` sets.
    """

    __slots__ = ("_message_id", "event", "first", "recalled", "resolved", "result", "state")

    state: State

    def __init__(self, event: Event) -> None:
        self.event = event
        self._message_id = event.message_id
        self.recalled: Recalled | None = None
        self.resolved: Resolved | None = None
        self.first: Member | None = None
        """The earlier event of the batch with the same message."""
        self.result: Resolved | Exception | None = None

    def begin(self, store: Store) -> None:
        """Open a transaction to resolve the event in."""
        self.state = store.begin(self.event.received_at)

    def be_recalled(self, recalled: Recalled) -> None:
        """Take a result that was resolved from memory."""
        self.recalled, self.resolved, self.state = recalled, recalled.resolved, recalled.state

    @property
    def is_recalled(self) -> bool:
        """Whether the event needs no further resolving if memory is right."""
        return self.recalled is not None or self.result is not None or self.first is not None

    def repeats(self, messages: dict[str, Member]) -> bool:
        """Whether the event repeats an earlier one of the batch, and shares its result."""
        if self._message_id is None:
            return False
        self.first = messages.get(self._message_id)
        return self.first is not None

    def claim(self, messages: dict[str, Member]) -> None:
        """Become the event whose result later events with the same message share."""
        if self._message_id is not None and self.resolved is not None and self.resolved.record is not None:
            messages[self._message_id] = self

    def undo(self, messages: dict[str, Member]) -> None:
        """Undo `be_recalled`."""
        if self._message_id is not None and messages.get(self._message_id) is self:
            del messages[self._message_id]
        if self.recalled is not None:
            self.recalled.undo(self.event)
        self.first = self.recalled = self.resolved = self.result = None


def result_of(member: Member) -> Resolved | Exception:
    """The result of an event. An error is returned, not raised."""
    if member.first is not None:
        first = result_of(member.first)
        return first if isinstance(first, Exception) else Resolved(Outcome.DUPLICATE, first.session)
    assert member.result is not None
    return member.result
