"""The keys of stored entries in the cache, for the back ends' `Contents`."""

from __future__ import annotations

from collections.abc import Iterable

from ingestd.api.contents import Entry

from .entry import set_key

__all__ = ["cache_keys"]


def cache_keys(entries: Iterable[Entry]) -> list[str]:
    """The keys under which the cache has these entries, whether they are sets or not."""
    return [name for entry in entries for name in (entry.key, set_key(entry.key))]
