"""`ingestd schemas catalogue`: the event keys and members that callers have sent, with types, times and examples."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.imported import is_completed
from ingestd.api.output import write_result
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.masking import mask_name
from ingestd.support.names import hint
from ingestd.support.terminal import printable, table
from ingestd.validation.faults import type_name
from ingestd.validation.schema_files import json_pointer, shorten
from ingestd.validation.validator import Validator

from ..journal_reading import RecordReader

__all__ = ["Catalogue", "catalogue", "masked"]

# Callers choose names, so each number has a bound.
_MOST_KEYS = 1_000
_MOST_MEMBERS = 2_000  # of one key
_MOST_DEPTH = 8
_MOST_ELEMENTS = 100  # of one array
_LONGEST_NAME = 200
_LONGEST_EXAMPLE = 30


class _Member:
    """A member of events of one key, by its pointer. Times are in milliseconds."""

    def __init__(self, at: int) -> None:
        self.events = 0
        self.types: Counter[str] = Counter()
        self.first = self.last = at
        self.example = ""

    def see(self, at: int, values: list[Any]) -> None:
        """Count an event with these values at this place. An array may have several."""
        self.events += 1
        self.first, self.last = min(self.first, at), max(self.last, at)
        self.types.update({type_name(value) for value in values})
        if not self.example:
            self.example = next(filter(None, map(masked, values)), "")


class _Key:
    def __init__(self, at: int) -> None:
        self.whole = _Member(at)
        self.members: dict[str, _Member] = {}
        self.left_out = 0
        """Members of events that are not counted, because the key has too many."""

    def see(self, at: int, data: Any) -> None:
        self.whole.see(at, [])
        found: dict[str, list[Any]] = {}
        _collect(data, ("data",), found)
        for pointer, values in found.items():
            if pointer not in self.members:
                if len(self.members) >= _MOST_MEMBERS:
                    self.left_out += 1
                    continue
                self.members[pointer] = _Member(at)
            self.members[pointer].see(at, values)


def _collect(value: Any, path: tuple[str, ...], found: dict[str, list[Any]]) -> None:
    if isinstance(value, dict):
        inner: list[tuple[str, Any]] = [*islice(value.items(), _MOST_MEMBERS)]
    elif isinstance(value, list):
        inner = [("*", each) for each in value[:_MOST_ELEMENTS]]
    else:
        return
    for name, each in inner:
        below = (*path, shorten(mask_name(name), _LONGEST_NAME))
        found.setdefault(json_pointer(below), []).append(each)
        if len(below) <= _MOST_DEPTH:
            _collect(each, below, found)


def masked(value: Any) -> str:
    """The form of a value: a for each letter and 9 for each digit. Empty for an object or array."""
    if isinstance(value, dict | list) or value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shorten("".join(map(_form, text[: _LONGEST_EXAMPLE + 1])), _LONGEST_EXAMPLE)


def _form(character: str) -> str:
    if character.isnumeric():
        return "9"
    # Scripts also write with signs that Unicode does not call letters.
    return "a" if character.isalpha() or not character.isascii() else character


class Catalogue:
    def __init__(self, known: Collection[str] = ()) -> None:
        """`known` keys are shown as they are. Callers choose others, and may put an address or an id into them."""
        self._known = known
        self.keys: dict[str, _Key] = {}
        self.left_out = 0
        """Events of keys beyond the bound."""

    def see(self, key: str, at: int, data: Any) -> None:
        key = key if key in self._known else mask_name(key)
        if key not in self.keys:
            if len(self.keys) >= _MOST_KEYS:
                self.left_out += 1
                return
            self.keys[key] = _Key(at)
        self.keys[key].see(at, data)

    def facts(self) -> Iterator[dict[str, Any]]:
        """One object for each key, sorted by name."""
        for key, found in sorted(self.keys.items()):
            members = [
                {
                    "pointer": pointer,
                    **_counts(member),
                    "share": round(member.events / found.whole.events, 4),
                    "types": [each for each, _ in member.types.most_common()],
                    "example": member.example,
                }
                for pointer, member in sorted(found.members.items())
            ]
            yield {"key": key, **_counts(found.whole), "members": members, "membersLeftOut": found.left_out}

    def lines(self) -> Iterator[str]:
        rows = [("KEY", "MEMBER", "EVENTS", "SHARE", "TYPES", "FIRST", "LAST", "EXAMPLE")]
        for each in self.facts():
            rows.append((printable(each["key"]), "", str(each["events"]), "", "", *_dates(each), ""))
            rows += [
                (
                    "", printable(member["pointer"]), str(member["events"]), f"{member['share']:.1%}",
                    ", ".join(member["types"]), *_dates(member), printable(member["example"]),
                )
                for member in each["members"]
            ]  # fmt: skip
            if each["membersLeftOut"]:
                rows.append(("", f"and more ({each['membersLeftOut']} times)", "", "", "", "", "", ""))
        yield from table(rows)
        if self.left_out:
            yield f"{self.left_out} events of further keys are left out"


def _counts(member: _Member) -> dict[str, Any]:
    return {
        "events": member.events,
        "first": times.format_time(member.first),
        "last": times.format_time(member.last),
    }


def _dates(facts: dict[str, Any]) -> tuple[str, str]:
    return facts["first"][:10], facts["last"][:10]


class _Head(msgspec.Struct, gc=False):
    key: str
    data: Any
    erased: bool = False


_read = msgspec.json.Decoder(_Head).decode


async def catalogue(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    known = Validator.load(config.schemas.directory).keys
    found = Catalogue({*known, *arguments.keys})
    async with open_backends(config, plugins) as backends:
        reader = RecordReader(backends.partitions, arguments.since)
        async for records in reader.pages():
            for record in records:
                if record.type != "event" or record.at < arguments.since or is_completed(record.body):
                    continue
                try:
                    head = _read(record.body)
                except (msgspec.MsgspecError, UnicodeError, RecursionError):  # a plugin wrote it
                    continue
                if not head.erased and (not arguments.keys or head.key in arguments.keys):
                    found.see(head.key, record.received_at(), head.data)
    for key in arguments.keys:
        if key not in known and key not in found.keys:
            near = hint(key, sorted({*known, *found.keys}), otherwise="")
            raise CommandError(f"there is no event key {key!r}; {near}".rstrip("; "))
    write_result(*found.facts(), lines=found.lines(), as_json=arguments.json)
    reader.missing.check("their events are not in the catalogue")
