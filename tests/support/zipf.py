"""Tenants of very different sizes, and the nodes of a cluster that share their partitions."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Nodes", "zipf_sizes"]


def zipf_sizes(tenants: int, events: int) -> list[int]:
    """The number of events of each tenant: the second has half as many as the first, the third has a third."""
    whole = sum(1 / rank for rank in range(1, tenants + 1))
    return [max(1, round(events / whole / rank)) for rank in range(1, tenants + 1)]


class Nodes:
    """The nodes, with the partitions of each. `sizes` and `node_of` are those of each partition."""

    def __init__(self, sizes: Sequence[int], node_of: Sequence[int], count: int) -> None:
        self.node_of = [*node_of]
        self.moves = 0
        self._sizes = sizes
        self._count = count

    @property
    def load(self) -> list[int]:
        """The events of each node."""
        load = [0] * self._count
        for size, node in zip(self._sizes, self.node_of, strict=True):
            load[node] += size
        return load

    @property
    def factor(self) -> float:
        """The largest load divided by the smallest."""
        return max(self.load) / max(1, min(self.load))

    def move_one(self) -> tuple[int, int]:
        """Move a partition from the fullest node to the emptiest. Return it, and the node.

        It is the one whose size is nearest to half of the difference.
        """
        load = self.load
        fullest, emptiest = load.index(max(load)), load.index(min(load))
        half = (max(load) - min(load)) / 2
        movable = [index for index, node in enumerate(self.node_of) if node == fullest]
        moved = min(movable, key=lambda index: abs(self._sizes[index] - half))
        self.node_of[moved] = emptiest
        self.moves += 1
        return moved, emptiest
