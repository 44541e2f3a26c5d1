"""Cuts: how far each consumer has come in all partitions of a source, and an order in which they can be reached."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ingestd.api.errors import CommandError

from .sides import Side

__all__ = ["Cut", "cuts_of", "in_order", "is_within", "lowest"]


class Cut(NamedTuple):
    """The positions of a consumer in the partitions of the source, in their order."""

    consumer: str
    positions: list[int]


async def cuts_of(source: Sequence[Side]) -> list[Cut]:
    """The cuts of all consumers, by name. Raises `CommandError` if one has no cursor in a partition, `Unavailable`."""
    cursors, bounds = [], []
    for side in source:
        extent = await side.journal.extent()
        cursors.append({cursor.name: cursor.position for cursor in await side.journal.cursors()})
        bounds.append((extent.first - 1, extent.last))
    found = []
    for name in sorted({name for some in cursors for name in some}):
        positions = []
        for side, some, (lowest_, last) in zip(source, cursors, bounds, strict=True):
            if name not in some and last:
                raise CommandError(f"{name} has no cursor in {side}; start the daemon once, which gives it one")
            positions.append(min(max(some.get(name, 0), lowest_), last))
        found.append(Cut(name, positions))
    return found


def is_within(positions: Sequence[int], others: Sequence[int]) -> bool:
    """Whether no position is higher than the other one of its partition."""
    return all(position <= other for position, other in zip(positions, others, strict=True))


def lowest(cuts: Sequence[Cut], otherwise: Sequence[int]) -> list[int]:
    """The positions up to which all consumers have read. `otherwise` applies if there are no consumers."""
    return [min(each) for each in zip(*[cut.positions for cut in cuts], strict=True)] if cuts else [*otherwise]


def in_order(cuts: Sequence[Cut]) -> list[Cut]:
    """The cuts in an order in which each is within the next one. Raises `CommandError` if there is none.

    There is one if the source has one partition, or if only one consumer lags behind.
    """
    ordered = sorted(cuts, key=lambda cut: sum(cut.positions))
    for cut, following in pairwise(ordered):
        if not is_within(cut.positions, following.positions):
            raise CommandError(
                f"{cut.consumer} lags behind {following.consumer} in one partition and is ahead of it in another one,"
                " so no order of the records suits both; start the daemon, and let one of them catch up"
            )
    return ordered
