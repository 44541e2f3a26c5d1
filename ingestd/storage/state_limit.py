"""`[store] max_size`: the bytes of state that callers choose, which are profiles and the bodies of dead letters."""

from __future__ import annotations

import math

from ingestd.api.store import StoreSize
from ingestd.config import Config

__all__ = ["LETTERS", "VISITORS", "max_size"]

VISITORS, LETTERS = 0.5, 0.25
"""The shares of profiles by visitors without a link, and of dead letters. What is left is for profiles of users."""
_OF_CAPACITY = 4
_LEAST = 16 << 20
"""A journal may be small because its records go to sinks at once. Profiles need some room nevertheless."""


def max_size(config: Config, size: StoreSize | None, partitions: int) -> float:
    """The option in bytes, for one of several partitions.

    Unless it is set, it is `[journal] max_size`, and at least 16 MiB. Without that, it is a quarter of the disk or
    memory, or infinity if that is unknown.
    """
    if config.store.max_size is not None:
        return int(config.store.max_size)
    if config.journal.max_size is not None:
        return max(int(config.journal.max_size), _LEAST)
    return size.capacity / _OF_CAPACITY / partitions if size is not None and size.capacity else math.inf
