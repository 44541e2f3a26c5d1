"""What became of the lines of an import, and the printed result."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from ingestd.api.errors import CommandError, Refused, UnknownKey
from ingestd.api.events import Event
from ingestd.api.output import write_result
from ingestd.support.terminal import printable, table

from .line_reader import Item
from .lines import InputFile, Line

__all__ = ["BoundedCounter", "FaultReport", "Tally", "listed", "print_summary"]

_MOST = 1000  # different texts
_LONGEST = 100  # characters of a text
_OTHERS = "(others)"


class BoundedCounter(Counter[str]):
    """Counts the first 1,000 different texts, and all others together."""

    def add(self, text: str) -> None:
        text = text[:_LONGEST]
        self[text if text in self or len(self) < _MOST else _OTHERS] += 1


class Tally:
    """What became of `lines` lines. A message of an intake may become several events, or none.

    `counts` has the number of records by outcome, `types` and `keys` those of stored ones by type and event key.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.counts: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.keys = BoundedCounter()
        self._orders = 0
        self.events_without_session = 0
        """Events that the journal has without state and without a session."""

    @property
    def orders_not_attributed(self) -> int:
        """Orders that the journal has without state. The attributions of the files are history of such orders."""
        return max(0, self._orders)

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
        if isinstance(item.content, Event) and item.type == "event" and item.content.session_id is None:
            self.events_without_session += 1


_ROWS = 20  # rows of a table, and names of a list


def print_summary(tally: Tally, faults: Counter[str], left_out: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    """`faults` are the numbers of faulty lines by place, `left_out` the files that were not read."""
    counts, types = dict(sorted(tally.counts.items())), dict(sorted(tally.types.items()))
    told = {
        "dryRun": dry_run, "lines": tally.lines, "counts": counts, "imported": types,
        "keys": dict(tally.keys.most_common()), "faults": dict(faults.most_common()), "filesLeftOut": len(left_out),
        "ordersNotAttributed": tally.orders_not_attributed, "eventsWithoutSession": tally.events_without_session,
    }  # fmt: skip
    lines = _for_people(tally, counts, types, faults, dry_run=dry_run) if counts else ["the files have no lines"]
    write_result(told, lines=lines, as_json=as_json)


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


_INDEX = re.compile(r"/[0-9]+(?=/|$)")
_MODE = 0o600
_SHOWN = 10  # faults on standard error if there is no file for them


class FaultReport:
    """Counts faults, and writes each to `path` as one JSON object a line, or shows the first ones with `say`."""

    def __init__(
        self, path: Path | None, say: Callable[[str], None], most: int, inputs: Sequence[InputFile] = ()
    ) -> None:
        """`most` is the number of faults that end the import.

        Raises `CommandError` if the file cannot be written, or is one of `inputs`.
        """
        self.count = 0
        self.places = BoundedCounter()
        """The number of faulty lines by the place of their first fault. It counts all elements of an array together."""
        self._say = say
        self._most = most
        self._file: IO[str] | None = None
        if path is not None:
            try:
                self._file = _create(path, inputs)
            except OSError as error:
                raise CommandError(f"{path}: {error.strerror}") from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def is_full(self) -> bool:
        """Whether there are so many faults that the import ends."""
        return self.count >= self._most

    def add(self, line: Line, refused: Refused) -> None:
        self.count += 1
        self.places.add(_place(refused))
        if self._file is not None:
            told = {
                "file": line.file,
                "line": line.number,
                "code": refused.code,
                "message": refused.detail,
                "errors": [{"pointer": error.pointer, "message": error.message} for error in refused.errors],
            }
            self._file.write(f"{json.dumps(told)}\n")
        elif self.count <= _SHOWN:
            self._say(f"{line.file}:{line.number}: {_told(refused)}")
        elif self.count == _SHOWN + 1:
            self._say("more lines are not imported; --errors FILE lists all of them")


def _create(path: Path, inputs: Sequence[InputFile]) -> IO[str]:
    """Open a file that only its owner can read, since faults quote values of callers."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _MODE)
    file = open(fd, "w", encoding="utf-8")  # noqa: SIM115 - the caller closes it
    status = os.fstat(fd)
    if any(os.path.samestat(status, each.status) for each in inputs):
        raise CommandError(f"{path}: this file is to be imported, so it cannot have the faults")
    if stat.S_ISREG(status.st_mode):
        os.fchmod(fd, _MODE)
        os.ftruncate(fd, 0)
    return file


def _place(refused: Refused) -> str:
    if not refused.errors:
        return "the line"
    first = refused.errors[0]
    if isinstance(refused, UnknownKey):  # its message has the name, which people look for
        return f"{first.pointer}: {first.message}"
    return _INDEX.sub("/*", first.pointer) or "the line"


def _told(refused: Refused) -> str:
    if not refused.errors:
        return refused.detail
    first = refused.errors[0]
    others = f" (and {len(refused.errors) - 1} more faults)" if len(refused.errors) > 1 else ""
    return f"{first.pointer or 'the line'}: {first.message}{others}"
