"""How often a daemon looks at an idle partition."""

from __future__ import annotations

__all__ = ["seconds_between_looks"]

_LOOKS = 20  # a second, of one kind, in all partitions together


def seconds_between_looks(seconds: float, partitions: int, most: float) -> float:
    """The pause between two looks of one kind at one of so many partitions.

    It is `seconds` for one partition. For many it grows with their number, so that the looks at all of them cost no
    more, until it is `most` seconds.
    """
    return max(seconds, min((partitions - 1) / _LOOKS, most))
