"""Sessions that are known to have a touchpoint. Further events of them that have a referrer alone end early."""

from __future__ import annotations

from typing import NamedTuple

from ingestd.api.times import format_time

from .touches import Touch

__all__ = ["Visit", "Visits"]

_MOST = 10_000  # visitors; 4 MB


class Visit(NamedTuple):
    """A session with a touchpoint at this time, in milliseconds and as records have it."""

    session_id: str | None
    at: int
    time: str

    def is_surely_before(self, timestamp: str) -> bool:
        """Whether the touchpoint is before an event of this time. Reading the time would tell, but takes longer."""
        is_usual = len(timestamp) == len(self.time) and timestamp[10] == "T" and timestamp[-1] == "Z"
        return is_usual and timestamp >= self.time


class Visits:
    """What the state says of the last session of visitors, for one who reads the journal without a gap.

    A page of one document sends its referrer with each event. Only the first one counts, and this knows it without a
    read of the state. `horizon` is how long touchpoints are remembered, in milliseconds.
    """

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._known: dict[tuple[str, str], Visit] = {}
        self._changing: set[tuple[str, str]] = set()
        self._next = 0

    def begin(self, position: int) -> None:
        """Begin a step at this position. After a step that failed, or another daemon's, nothing is known."""
        self._changing.clear()
        if position != self._next:
            self._known.clear()

    def end(self, position: int) -> None:
        self._next = position + 1

    def clear(self) -> None:
        self._known.clear()

    def will_change(self, tenant: str, anonymous_id: str) -> None:
        """Say that the step changes the visitor's touchpoints. What is known then does not count for later records."""
        self._changing.add((tenant, anonymous_id))

    def learn(self, tenant: str, anonymous_id: str, touch: Touch | None) -> None:
        """Learn that the state has this touchpoint of the visitor. None: the visitor's touchpoints have changed."""
        visitor = tenant, anonymous_id
        known = self._known.get(visitor)
        if touch is None:
            if known is not None:
                del self._known[visitor]
        elif known is None or (known.session_id, known.at) != (touch.session_id, touch.at):
            if known is None and len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            self._known[visitor] = Visit(touch.session_id, touch.at, format_time(touch.at))

    def find(
        self, tenant: str, anonymous_id: str, session_id: str | None, now: int, *, reading: bool = True
    ) -> Visit | None:
        """What is known of the session, if its touchpoint counts now (milliseconds).

        `reading` asks for a record before the earlier ones of the step are applied.
        """
        known = self._known.get((tenant, anonymous_id))
        if known is None or known.session_id != session_id or known.at < now - self._horizon:
            return None
        return None if reading and (tenant, anonymous_id) in self._changing else known

    def has_source(self, tenant: str, anonymous_id: str, touch: Touch, now: int) -> bool:
        """Whether the session of a touchpoint is known to have an earlier one, once the records before are applied."""
        known = self.find(tenant, anonymous_id, touch.session_id, now, reading=False)
        return known is not None and known.at <= touch.at
