"""Sessions that are known to have a touchpoint. Further events of them that have a referrer alone end early."""

from __future__ import annotations

from typing import NamedTuple

from ingestd.api.times import format_time

from .touches import Touch

__all__ = ["Visit", "Visits"]

_MOST = 10_000  # visitors; 4 MB
_TOO_MANY = 1 << 30


class Visit(NamedTuple):
    """A session with a touchpoint at this time, in milliseconds and as records have it."""

    session_id: str | None
    at: int
    time: str
    room: int
    """So many further touchpoints of the visitor displace none."""

    def is_surely_before(self, timestamp: str) -> bool:
        """Whether the touchpoint is before an event of this time. Reading the time would tell, but takes longer."""
        is_usual = len(timestamp) == len(self.time) and timestamp[10] == "T" and timestamp[-1] == "Z"
        return is_usual and timestamp >= self.time


class Visits:
    """What the state says of the last session of visitors, for one who reads the journal without a gap.

    A page of one document sends its referrer with each event. Only the first one counts, and this knows it without a
    read of the state. `horizon` is how long touchpoints are remembered, in milliseconds.

    A step reads all its records before it applies them. What is known then still counts if the records between can
    neither displace the touchpoint nor come before it.
    """

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._known: dict[tuple[str, str], Visit] = {}
        self._changes: dict[tuple[str, str], int] = {}
        self._next = 0

    def begin(self, position: int) -> None:
        """Begin a step at this position. After a step that failed, or another daemon's, nothing is known."""
        self._changes.clear()
        if position != self._next:
            self._known.clear()

    def end(self, position: int) -> None:
        self._next = position + 1

    def clear(self) -> None:
        self._known.clear()

    def expect(self, tenant: str, anonymous_id: str, touch: Touch) -> None:
        """Say that the step will apply this touchpoint, after the records that were read before."""
        visitor = tenant, anonymous_id
        known = self._known.get(visitor)
        if known is not None:
            self._changes[visitor] = self._changes.get(visitor, 0) + (1 if touch.at >= known.at else _TOO_MANY)

    def is_new(self, tenant: str, anonymous_id: str, touch: Touch) -> bool:
        """Whether to `learn` this touchpoint."""
        known = self._known.get((tenant, anonymous_id))
        return known is None or (known.session_id, known.at) != (touch.session_id, touch.at)

    def learn(self, tenant: str, anonymous_id: str, touch: Touch, room: int) -> None:
        """Learn that the state has this touchpoint of the visitor, and room for so many others."""
        self.forget(tenant, anonymous_id)
        if len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        visit = Visit(touch.session_id, touch.at, format_time(touch.at), room)
        self._known[tenant, anonymous_id] = visit

    def forget(self, tenant: str, anonymous_id: str) -> None:
        """Say that the visitor's touchpoints have changed."""
        self._known.pop((tenant, anonymous_id), None)

    def find(
        self, tenant: str, anonymous_id: str, session_id: str | None, now: int, *, reading: bool = True
    ) -> Visit | None:
        """What is known of the session, if its touchpoint counts now (milliseconds).

        `reading` asks for a record before the earlier ones of the step are applied.
        """
        known = self._known.get((tenant, anonymous_id))
        if known is None or known.session_id != session_id or known.at < now - self._horizon:
            return None
        return None if reading and self._changes.get((tenant, anonymous_id), 0) > known.room else known

    def has_source(self, tenant: str, anonymous_id: str, touch: Touch, now: int) -> bool:
        """Whether the session of a touchpoint is known to have an earlier one, once the records before are applied."""
        known = self.find(tenant, anonymous_id, touch.session_id, now, reading=False)
        return known is not None and known.at <= touch.at
