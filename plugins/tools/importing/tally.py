"""What became of the lines of an import, and the printed result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ingestd.api.events import Event
from ingestd.api.output import write, write_json
from ingestd.support.terminal import printable, table

from .line_reader import Item

__all__ = ["BoundedCounter", "Tally", "listed", "print_summary"]

_MOST = 1000  # different texts
_LONGEST = 100  # characters of a text
_OTHERS = "(others)"


class BoundedCounter(Counter[str]):
    """Counts the first 1,000 different texts, and all others together."""

    def add(self, text: str) -> None:
        text = text[:_LONGEST]
        self[text if text in self or len(self) < _MOST else _OTHERS] += 1


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


_ROWS = 20  # rows of a table, and names of a list


def print_summary(tally: Tally, faults: Counter[str], left_out: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    """`faults` are the numbers of faulty lines by place, `left_out` the files that were not read."""
    counts, types = dict(sorted(tally.counts.items())), dict(sorted(tally.types.items()))
    if as_json:
        told = {
            "dryRun": dry_run, "lines": tally.lines, "counts": counts, "imported": types,
            "keys": dict(tally.keys.most_common()), "faults": dict(faults.most_common()), "filesLeftOut": len(left_out),
            "ordersNotAttributed": tally.orders_not_attributed, "eventsWithoutSession": tally.events_without_session,
        }  # fmt: skip
        write_json(told)
    elif counts:
        write(_for_people(tally, counts, types, faults, dry_run=dry_run))
    else:
        write(["the files have no lines"])


def _for_people(
    tally: Tally, counts: Mapping[str, int], types: Mapping[str, int], faults: Counter[str], *, dry_run: bool
) -> Iterator[str]:
    yield from _titled("lines by outcome, nothing is stored:" if dry_run else "lines by outcome:", counts)
    yield from _titled("imported, by type:", types)
    yield from _titled("imported, by event:", dict(tally.keys.most_common()))
    yield from _titled("faulty, by place:", dict(faults.most_common()))
    if tally.orders_not_attributed or tally.events_without_session:
        yield (
            f"orders not attributed: {tally.orders_not_attributed}, events without a session:"
            f" {tally.events_without_session}; to make both, import the same files again with --state"
        )


def _titled(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    if not counts:
        return
    yield title
    rows = [(printable(name), str(number)) for name, number in counts.items()]
    for line in table(rows[:_ROWS], right=[1]):
        yield f"  {line}"
    if len(rows) > _ROWS:
        yield f"  and {len(rows) - _ROWS} more, which --json has"


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - _ROWS} more" if len(names) > _ROWS else ""
    return f"{', '.join(names[:_ROWS])}{more}"
