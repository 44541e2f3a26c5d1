"""The records that a sink gets: filters, and transforms by functions of plugins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ingestd.api.errors import ConfigError, reason_of
from ingestd.api.events import Record
from ingestd.api.sink import Transform
from ingestd.support.json_pointers import FIXED, MemberPointer, RecordPointer
from ingestd.support.member_changes import MemberChanges
from ingestd.support.names import nearest
from ingestd.support.pace import Pace
from ingestd.support.record_head import members_reader

from .options import FilterOptions, TransformOptions

__all__ = ["TYPES", "Filter", "RecordTransform", "Transformed", "check_filter", "make_filter", "make_transform"]

Filter = Callable[[Record], bool]


TYPES = ("event", "identify", "attribution", "attribution_reversal", "erasure")
"""Types of records. Plugins may append records of other types."""

_OF_CHANNELS = frozenset(["attribution", "attribution_reversal"])


def check_filter(options: FilterOptions, keys: Collection[str], channels: Collection[str], place: str) -> None:
    """Raises `ConfigError` for an unknown event key or channel, or a type that is probably misspelt.

    `keys` and `channels` are the known ones. `place` begins the message: the file and path of the filter.
    """
    for option, what, chosen, known in (
        ("keys", "event key", options.keys, keys),
        ("channels", "channel", options.channels, channels),
    ):
        for name in chosen or ():
            if name not in known:
                near = nearest(name, sorted(known))
                raise ConfigError(
                    f"{place}.{option}: there is no {what} {name!r}{f'; did you mean {near}?' if near else ''}"
                )
    for type_ in options.types or ():
        close = difflib.get_close_matches(type_, TYPES, n=1, cutoff=0.8)
        if close and type_ not in TYPES:
            raise ConfigError(f"{place}.types: there is no type {type_!r}; did you mean {close[0]}?")


class _Touchpoint(msgspec.Struct, gc=False):
    channel: str | None = None


class _Derived(msgspec.Struct, gc=False):
    touchpoint: _Touchpoint | None = None


_read_derived = members_reader(_Derived)


def _channel(record: Record) -> str | None:
    """The channel of an attribution or reversal. One without a touchpoint is direct."""
    touchpoint = _read_derived(record.body).touchpoint
    return "Direct" if touchpoint is None else touchpoint.channel


def make_filter(options: FilterOptions) -> Filter | None:
    """A function that tells whether a record passes, or None if all records pass.

    `keys` chooses among records with an event key, `channels` among attributions and their reversals. Other records
    pass if `types` names them. Without `types` only erasures do: who gets a person's records must learn of their
    erasure.
    """
    types, keys, channels, tenants = (
        None if chosen is None else frozenset(chosen)
        for chosen in (options.types, options.keys, options.channels, options.tenants)
    )

    def passes(record: Record) -> bool:
        if types is not None and record.type not in types:
            return False
        envelope = record.envelope()
        if tenants is not None and envelope.tenant not in tenants:
            return False
        if keys is None and channels is None:
            return True
        if channels is not None and record.type in _OF_CHANNELS:
            return _channel(record) in channels
        if keys is not None and (envelope.key is not None or record.type == "event"):
            return envelope.key in keys or record.type == "erasure"
        return types is not None or record.type == "erasure"

    if types is keys is channels is tenants is None:
        return None
    is_by_type = keys is channels is tenants is None
    return passes if not is_by_type else lambda record: record.type in (types or ())


_SLICE = 0.0005  # seconds of work after which other tasks get a turn

_encode = msgspec.json.Encoder().encode


class Transformed(NamedTuple):
    """A batch after the transform. Records that were left out or failed are unchanged."""

    records: Sequence[Record]
    left_out: Collection[int]
    """The indexes of the records for which the transform returned None."""
    reasons: Mapping[int, str]
    """Why the transform failed, by the index of the record."""


class RecordTransform(NamedTuple):
    """Applies a transform to the records of a sink. Only the body of a record changes."""

    name: str
    function: Transform

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
                reasons[index] = f"the transform {self.name} failed: {reason_of(error)}"
                body = record.body
            if body is None:
                left_out.add(index)
            records.append(record if body is None else replace(record, body=body))
        return Transformed(records, left_out, reasons)

    def _new_body(self, record: Record) -> bytes | None:
        value = record.decode()
        record_id = value.get("id")
        changed = self.function(value)
        if changed is None:
            return None
        if not isinstance(changed, dict):
            raise TypeError(f"it must return a dict or None, and returned a value of the type {type(changed).__name__}")
        if changed.get("id") != record_id:
            raise ValueError("it must not change the id of a record")
        return _encode(changed)


def make_transform(
    given: str | TransformOptions | None, known: Mapping[str, Transform], place: str
) -> RecordTransform | None:
    """The transform of a sink. Raises `ConfigError` for an unknown name. `place` begins the message."""
    if given is None:
        return None
    if isinstance(given, TransformOptions):
        return RecordTransform("of the configuration", _changes(given, place))
    if given not in known:
        near = difflib.get_close_matches(given, known, n=1)
        names = f"registered: {', '.join(sorted(known))}" if known else "no plugin registers one"
        hint = f"did you mean {near[0]}?" if near else names
        raise ConfigError(f"{place}: there is no transform {given!r}; {hint}")
    return RecordTransform(given, known[given])


@dataclass(frozen=True)
class _Changes:
    """A transform of the configuration. Equal options make equal ones."""

    options: TransformOptions
    changes: MemberChanges = field(compare=False)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        self.changes.apply(record)
        return record


def _changes(options: TransformOptions, place: str) -> Transform:
    names: dict[MemberPointer, str] = {}
    for text, name in options.rename.items():
        try:
            pointer = RecordPointer.parse(text)
            if pointer.tokens[-1] == "*":
                raise ValueError("expected one member, not *")
            if name in FIXED and len(pointer.tokens) == 1:
                raise ValueError(f"a record keeps its {name}")
        except ValueError as error:
            raise ConfigError(f"{place}.rename: {text}: {error}") from None
        names[pointer] = name
    try:
        changes = MemberChanges(drop=options.drop, hash=options.hash, rename=names, secret=options.secret)
    except ValueError as error:
        raise ConfigError(f"{place}.{error}") from None
    return _Changes(options, changes)
