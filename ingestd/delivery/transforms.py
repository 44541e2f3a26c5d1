"""The records that a sink gets: filters, and transforms by functions of plugins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ingestd.api.errors import ConfigError, reason_of
from ingestd.api.events import Record
from ingestd.api.sink import Transform
from ingestd.support.pace import Pace

from .options import FilterOptions

__all__ = ["TYPES", "Filter", "RecordTransform", "Transformed", "check_filter", "make_filter", "make_transform"]

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


_SLICE = 0.0005  # seconds of work after which other tasks get a turn

_encode = msgspec.json.Encoder().encode


class Transformed(NamedTuple):
    """A batch after the transform. Records that were left out or failed are unchanged."""

    records: Sequence[Record]
    left_out: Collection[int]
    """The indexes of the records for which the transform returned None."""
    reasons: Mapping[int, str]
    """Why the transform failed, by the index of the record."""


class RecordTransform:
    """Applies a transform to the records of a sink. Only the body of a record changes."""

    def __init__(self, name: str, function: Transform) -> None:
        self._name = name
        self._function = function

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordTransform):
            return NotImplemented
        return (self._name, self._function) == (other._name, other._function)

    def __hash__(self) -> int:
        return hash(self._name)

    async def apply(self, batch: Sequence[Record]) -> Transformed:
        records: list[Record] = []
        left_out: set[int] = set()
        reasons: dict[int, str] = {}
        pace = Pace(_SLICE)
        for index, record in enumerate(batch):
            if pace.is_over():
                await pace.pause()
            try:
                body = self._new_body(record)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and the record is at fault
                reasons[index] = f"the transform {self._name} failed: {reason_of(error)}"
                body = record.body
            if body is None:
                left_out.add(index)
            records.append(record if body is None else replace(record, body=body))
        return Transformed(records, left_out, reasons)

    def _new_body(self, record: Record) -> bytes | None:
        value = record.decode()
        record_id = value.get("id")
        changed = self._function(value)
        if changed is None:
            return None
        if not isinstance(changed, dict):
            raise TypeError(f"it must return a dict or None, and returned a value of the type {type(changed).__name__}")
        if changed.get("id") != record_id:
            raise ValueError("it must not change the id of a record")
        return _encode(changed)


def make_transform(name: str | None, known: Mapping[str, Transform], place: str) -> RecordTransform | None:
    """The transform of a sink. Raises `ConfigError` for an unknown name. `place` begins the message."""
    if name is None:
        return None
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        names = f"registered: {', '.join(sorted(known))}" if known else "no plugin registers one"
        hint = f"did you mean {near[0]}?" if near else names
        raise ConfigError(f"{place}: there is no transform {name!r}; {hint}")
    return RecordTransform(name, known[name])
