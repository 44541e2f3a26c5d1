"""What became of the lines of an import."""

from __future__ import annotations

from collections import Counter

from ingestd.api.events import Event

from .bounded_counter import BoundedCounter
from .line_reader import Item

__all__ = ["Tally"]


class Tally:
    """`counts` has the number of lines by outcome, `types` and `keys` those of stored records by type and event key."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.keys = BoundedCounter()
        self._orders = self._sessions = 0

    @property
    def lines(self) -> int:
        return self.counts.total()

    @property
    def orders_not_attributed(self) -> int:
        """Orders that the journal has without state. The attributions of the files are history of such orders."""
        return max(0, self._orders)

    @property
    def events_without_session(self) -> int:
        """Events that the journal has without state and without a session."""
        return self._sessions

    def stored(self, item: Item, *, changes_state: bool) -> None:
        self.counts["completed" if item.former else "imported"] += 1
        self.types[item.type] += 1
        if isinstance(item.content, Event) and item.content.key is not None:
            self.keys.add(item.content.key)
        if not changes_state:
            self.missing(item)

    def missing(self, item: Item) -> None:
        """Note an item that the journal has without state."""
        self._orders += item.is_order - (item.type == "attribution")
        self._sessions += isinstance(item.content, Event) and item.type == "event" and item.content.session_id is None
