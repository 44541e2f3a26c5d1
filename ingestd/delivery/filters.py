"""Filters: the records that a sink gets."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection

from ingestd.api.errors import ConfigError
from ingestd.api.events import Record

from .options import FilterOptions

__all__ = ["TYPES", "Filter", "check_filter", "make_filter"]

Filter = Callable[[Record], bool]


TYPES = ("event", "identify", "attribution", "attribution_reversal", "erasure")
"""Types of records. Plugins may append records of other types."""


def check_filter(options: FilterOptions, keys: Collection[str], place: str) -> None:
    """Raises `ConfigError` for an unknown event key, or a type that is probably misspelt, since no record has these.

    `keys` has the known event keys. `place` begins the message: the file and path of the filter.
    """
    for key in options.keys or ():
        if key not in keys:
            near = difflib.get_close_matches(key, sorted(keys), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{place}.keys: there is no event key {key!r}{hint}")
    for type_ in options.types or ():
        near = difflib.get_close_matches(type_, TYPES, n=1, cutoff=0.8)
        if near and type_ not in TYPES:
            raise ConfigError(f"{place}.types: there is no type {type_!r}; did you mean {near[0]}?")


def make_filter(options: FilterOptions) -> Filter | None:
    """A function that tells whether a record passes, or None if all records pass.

    With `keys`, records without an event key do not pass, except erasures. A receiver of a person's events must also
    learn of their erasure. `types` can still exclude erasures.
    """
    types, keys, tenants = (
        None if chosen is None else frozenset(chosen) for chosen in (options.types, options.keys, options.tenants)
    )

    def passes(record: Record) -> bool:
        if types is not None and record.type not in types:
            return False
        envelope = record.envelope()
        if tenants is not None and envelope.tenant not in tenants:
            return False
        return keys is None or envelope.key in keys or record.type == "erasure"

    if types is keys is tenants is None:
        return None
    return passes if keys is not None or tenants is not None else lambda record: record.type in (types or ())
