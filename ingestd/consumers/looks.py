"""How often a daemon looks at an idle partition, and how often its consumers take a step in a busy one."""

from __future__ import annotations

__all__ = ["seconds_between_looks", "seconds_between_steps"]

_LOOKS = 20  # a second, of one kind, in all partitions together
_STEPS = 125  # a second, of one consumer, in all partitions together, while its steps are not full
_MOST_STEP = 1.0  # seconds


def seconds_between_looks(seconds: float, partitions: int, most: float) -> float:
    """The pause between two looks of one kind at one of so many partitions.

    It is `seconds` for one partition. For many it grows with their number, so that the looks at all of them cost no
    more, until it is `most` seconds.
    """
    return max(seconds, min((partitions - 1) / _LOOKS, most))


def seconds_between_steps(partitions: int) -> float:
    """The pause between the starts of two steps of a consumer in one of so many partitions.

    The records of many partitions come one by one: a step for each of them would cost more than the events.
    """
    return min((partitions - 1) / _STEPS, _MOST_STEP)
