"""The hash tags of partitions: they decide the slot of each partition, and so its node."""

from __future__ import annotations

from itertools import count

from redis.crc import key_slot

from .topology import SLOTS

__all__ = ["partition_tags"]

_BEGINNING = 4  # slots: the fewer, the longer the search


def partition_tags(partitions: int) -> list[str]:
    """A hash tag for each partition, so that the partitions are spread evenly over the slots.

    A node with a part of the slots has the same part of the partitions, give or take one. Hash tags made of the names
    of partitions would not do this: of 64, a third of the slots has 19 to 24. Stored data depends on the tags, so they
    never change.

    The slots are divided into equal ranges. A partition's tag is the first number whose slot is at the beginning of its
    range. So the first partition has the same tag whatever the number of partitions.
    """
    beginnings = {-(-index * SLOTS // partitions): index for index in range(partitions)}
    indices = {slot + offset: index for slot, index in beginnings.items() for offset in range(_BEGINNING)}
    tags: dict[int, str] = {}
    numbers = map(str, count())
    while len(tags) < partitions:
        tag = next(numbers)
        index = indices.get(key_slot(tag.encode()))
        if index is not None:
            tags.setdefault(index, tag)
    return [tags[index] for index in range(partitions)]
