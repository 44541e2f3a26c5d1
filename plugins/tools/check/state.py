"""The line of `ingestd check` about the state: its size, its bound, and the room on the disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.api.check_result import CheckResult, show_size
from ingestd.api.store import StoreSize
from ingestd.config import Config
from ingestd.daemon.state_sizes import LETTERS, VISITORS, max_size
from ingestd.delivery.dead_letters import load_letter_bytes
from ingestd.storage.split_journal import SplitJournal

from ..journal_reading import sinks_of

__all__ = ["look_at_state"]

_NEARLY_FULL = 0.9


class _Sizes(NamedTuple):
    """The sizes of one partition, in bytes."""

    store: StoreSize
    journal: int
    is_apart: bool
    letters: int

    @property
    def beside_journal(self) -> int:
        return self.store.used if self.is_apart else max(0, self.store.used - self.journal)


async def look_at_state(partitions: Sequence[Partition], config: Config) -> list[CheckResult]:
    """Nothing if a store does not know its size. Raises `Unavailable`."""
    found = [await _sizes(each) for each in partitions]
    sizes = [each for each in found if each is not None]
    if not sizes:
        return []
    profiles, letters = sum(each.store.fields for each in sizes), sum(each.letters for each in sizes)
    state, free = sum(each.beside_journal for each in sizes), min(each.store.free for each in sizes)
    bounds = [max_size(config, each.store, len(partitions)) for each in sizes]
    most = sum(bounds)
    text = (
        f"{show_size(state)} beside the journal's records, {show_size(profiles)} in profiles and {show_size(letters)}"
        f" in dead letters; max_size = {_told(most, config)}"
    )
    remarks = []
    if any(each.store.fields >= _NEARLY_FULL * VISITORS * bound for each, bound in zip(sizes, bounds, strict=True)):
        remarks.append("profiles are nearly full, and traits of visitors will not be kept")
    if any(each.letters >= _NEARLY_FULL * LETTERS * bound for each, bound in zip(sizes, bounds, strict=True)):
        remarks.append("dead letters are nearly full, and further ones will be without their records")
    if config.journal.max_size is not None:
        may_grow = sum(max(0, int(config.journal.max_size) - each.journal) for each in sizes)
        may_grow += max(0, round(most) - profiles - letters)
        if may_grow > free:
            remarks.append(f"journal and state may grow by {show_size(may_grow)}, and {show_size(free)} are free")
    facts = {"bytes": state, "profileBytes": profiles, "deadLetterBytes": letters}
    if most < math.inf:
        facts["maxBytes"] = round(most)
    return [CheckResult("state", "; ".join([text, *remarks]), "warning" if remarks else "ok", facts)]


async def _sizes(partition: Partition) -> _Sizes | None:
    size = await partition.store.size()
    if size is None:
        return None
    state, letters = partition.store.begin(times.now()), 0
    for sink in await sinks_of(partition.journal):
        letters += await load_letter_bytes(state, sink) or 0
    journal = (await partition.journal.extent()).bytes
    return _Sizes(size, journal, isinstance(partition.journal, SplitJournal), letters)


def _told(most: float, config: Config) -> str:
    if config.store.max_size is not None:
        return str(config.store.max_size)
    if most == math.inf:
        return "none"
    source = "[journal] max_size" if config.journal.max_size is not None else "a quarter of the disk or memory"
    return f"{show_size(round(most))}, from {source}"
