"""The printed result of an import. Texts of files are escaped, and long lists are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ingestd.api.output import write, write_json
from ingestd.support.terminal import printable, table

from .tally import Tally

__all__ = ["listed", "print_summary"]

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
