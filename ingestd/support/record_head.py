"""The members of a record by which the kernel and plugins know it, read in a fraction of the time of the whole record.

The record of a plugin may be any JSON value, and a name may have another meaning in it. Members that do not fit are
left out, then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec.structs import FieldInfo

__all__ = ["RecordHead", "members_reader", "read_head"]

Members = TypeVar("Members", bound=msgspec.Struct)
Id = str | int | None
"""A shop's own schema may allow whole numbers."""

NO_MEMBER = msgspec.Raw(b"")


class RecordHead(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A member that the record lacks is None or empty."""

    id: str | None = None
    tenant: str | None = None
    key: str | None = None
    endpoint: str = ""
    timestamp: str = ""
    received_at: str = ""
    decided_at: str = ""
    erased_at: str = ""
    anonymous_id: Id = None
    user_id: Id = None
    session_id: str | None = None
    session_is_new: bool = False
    message_id: str | None = None
    linked: bool | None = None
    erased: bool = False
    anonymous_ids: list[Id] = []
    """The visitors of an erasure."""
    order_id: Id = None
    order_event_id: str | None = None
    schema: str | None = None
    data: msgspec.Raw = NO_MEMBER
    mark: msgspec.Raw = msgspec.field(name="import", default=NO_MEMBER)

    @property
    def visitor(self) -> str | None:
        return _text(self.anonymous_id)

    @property
    def visitors(self) -> list[str]:
        """The visitors of the record. An erasure has several."""
        return [str(each) for each in (self.anonymous_id, *self.anonymous_ids) if each is not None]

    @property
    def user(self) -> str | None:
        return _text(self.user_id)

    @property
    def orders(self) -> list[str]:
        """The order that the record is about, and the one that its `data` names."""
        in_data = _read_order(self.data).order_id if self.data else None
        return [str(each) for each in (self.order_id, in_data) if each is not None]


class _Order(msgspec.Struct, gc=False):
    order_id: Id = None


def members_reader(kind: type[Members]) -> Callable[[bytes], Members]:
    """Returns a function that reads the members of a struct from a JSON object.

    The function leaves out members that do not fit, also those of structs in it. It raises `msgspec.DecodeError` or
    `UnicodeDecodeError` for a text that is no JSON, and `msgspec.ValidationError` if a required member is missing or
    does not fit.
    """
    decode = msgspec.json.Decoder(kind).decode

    def read(body: bytes) -> Members:
        try:
            return decode(body)
        except msgspec.ValidationError:
            return _read_what_fits(body, kind)

    return read


def _read_what_fits(body: bytes | msgspec.Raw, kind: type[Members]) -> Members:
    found: dict[str, Any] = {}
    fields = _fields_of(kind)
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:  # another value than an object
        members = {}
    for name, raw in members.items():
        if name in fields:
            with suppress(msgspec.ValidationError):
                found[fields[name].name] = _value(raw, fields[name].type)
    missing = [name for name, each in fields.items() if each.required and each.name not in found]
    if missing:
        raise msgspec.ValidationError(f"the record has no {' and no '.join(missing)}")
    return kind(**found)


@lru_cache(1000)
def _fields_of(kind: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    return {each.encode_name: each for each in msgspec.structs.fields(kind)}


def _value(raw: msgspec.Raw, type_: Any) -> Any:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return _read_what_fits(raw, type_)
    return raw if type_ is msgspec.Raw else msgspec.json.decode(raw, type=type_)


def _text(value: Id) -> str | None:
    return None if value is None else str(value)


read_head = members_reader(RecordHead)
_read_order = members_reader(_Order)
