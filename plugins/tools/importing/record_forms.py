"""The forms of records in a file, as `ingestd events export` writes them. A line of another form is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Annotated, Any, Literal, NoReturn

import msgspec

from ingestd.api.errors import BadRequest
from ingestd.api.times import parse_time
from ingestd.support.names import NAME

__all__ = [
    "FORMS", "Attribution", "DerivedRecord", "ImportMark", "ReceivedRecord", "check_id", "convert", "instant", "refuse",
]  # fmt: skip

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Tenant = Annotated[str, msgspec.Meta(pattern=NAME)]
_Uuid = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")]

_YEAR_2000 = 946_684_800_000
_CLOCKS = 300_000
"""Milliseconds by which the clock of another machine may be ahead."""


class ImportMark(msgspec.Struct, gc=False):
    """The member `import` of a record that an earlier import has written."""

    endpoint: str = ""
    at: str = ""
    state: bool = False
    completed: bool = False


class ReceivedRecord(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """The record of an event or identify request. The schemas check the members without a type here."""

    id: _Uuid
    type: Literal["event", "identify"]
    tenant: _Tenant
    received_at: str
    timestamp: str
    endpoint: str = ""
    signed: bool | None = None
    key: Any = msgspec.UNSET
    data: Any = msgspec.UNSET
    traits: Any = msgspec.UNSET
    anonymous_id: Any = msgspec.UNSET
    user_id: Any = None
    session_id: Any = None
    session_is_new: bool = False
    dispatch_id: Any = None
    message_id: Any = None
    context: Any = msgspec.UNSET
    extra: dict[str, Any] = {}
    linked: bool | None = None
    erased: bool = False
    mark: ImportMark | None = msgspec.field(name="import", default=None)
    schema: str | None = None
    """The schema that the event met first. It has to meet the present one."""

    @property
    def origin(self) -> str:
        """The endpoint that received the event first."""
        return self.endpoint if self.mark is None else self.mark.endpoint

    @property
    def is_blank(self) -> bool:
        """Whether nothing is left of the person, as `ingestd forget` leaves a record."""
        ids = (self.anonymous_id, self.user_id, self.session_id, self.dispatch_id, self.message_id)
        content = (self.data, self.traits, self.context, self.extra)
        return self.erased and not any(ids) and not any(each for each in content if each is not msgspec.UNSET)


class _Value(msgspec.Struct, gc=False):
    revenue: int | float | None
    total: int | float | None
    currency: str | None


class _Credit(msgspec.Struct, rename="camel", gc=False):
    event_id: str
    weight: int | float


class _Touchpoint(msgspec.Struct, rename="camel", gc=False):
    """Only the id is always there, because a large record has short forms of some touchpoints."""

    event_id: str
    at: str | None = None
    anonymous_id: str | None = None
    session_id: str | None = None
    source: str | None = None
    medium: str | None = None
    name: str | None = None
    term: str | None = None
    content: str | None = None
    dispatch_id: str | None = None
    same_as: int | None = None


class Attribution(msgspec.Struct, rename="camel", gc=False):
    id: _Uuid
    tenant: _Tenant
    decided_at: str
    order_id: str | None
    order_event_id: str
    anonymous_id: str | None
    user_id: str | None
    model: _Text
    window_seconds: int
    value: _Value
    touchpoint: _Touchpoint | None
    credits: dict[str, list[_Credit]]
    touchpoints: list[_Touchpoint]


class _Reversal(msgspec.Struct, rename="camel", gc=False):
    id: _Uuid
    tenant: _Tenant
    decided_at: str
    attribution_id: _Uuid
    order_id: str | None
    reason: _Text
    value: _Value
    cause: str


class _Erasure(msgspec.Struct, rename="camel", gc=False):
    id: _Uuid
    tenant: _Tenant
    erased_at: str
    user_id: str | None
    anonymous_ids: list[str]


DerivedRecord = Attribution | _Reversal | _Erasure

FORMS: Mapping[str, type[ReceivedRecord | DerivedRecord]] = {
    "event": ReceivedRecord,
    "identify": ReceivedRecord,
    "attribution": Attribution,
    "attribution_reversal": _Reversal,
    "erasure": _Erasure,
}
"""The forms by type. A derived record may have other members, which are kept."""

_PATH = re.compile(r" - at `\$((?:[^`])*)`\Z")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MEMBER = re.compile(r"(?:unknown field|missing required field) `([^`]*)`")


def convert(line: dict[str, Any]) -> ReceivedRecord | DerivedRecord:
    """The record of a line. Raises `BadRequest` for a line of another form."""
    type_ = line.get("type")
    form = FORMS.get(type_) if isinstance(type_, str) else None
    if form is None:
        refuse("/type", f"expected {', '.join(FORMS)}", "enum")
    try:
        return msgspec.convert(line, form)
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        steps = _STEP.findall(path[1]) if path else []
        names = takewhile("...".__ne__, [name or index for name, index in steps])  # the name in a map is unknown
        pointer = "".join(f"/{name}" for name in names)
        message = text[: path.start()] if path else text
        if member := _MEMBER.search(message):
            pointer += f"/{member[1].replace('~', '~0').replace('/', '~1')}"
        message = f"{message[0].lower()}{message[1:]}".replace("`", "")
        refuse(pointer, message, "type")


def instant(pointer: str, text: str, now: int) -> int:
    """The time in milliseconds. Raises `BadRequest` for a text that is no time, and for a time that cannot be right."""
    at = parse_time(text)
    if at is None:
        refuse(pointer, "expected an RFC 3339 time", "format")
    if at < _YEAR_2000:
        refuse(pointer, "the time is before the year 2000, so it was not set", "minimum")
    if at > now + _CLOCKS:
        refuse(pointer, "the time is in the future", "maximum")
    return at


def check_id(record_id: str, now: int) -> None:
    """Raises `BadRequest` for a UUIDv7 of a time to come: no daemon has made it, but some could, later."""
    if record_id[14] == "7" and int(record_id[:8] + record_id[9:13], 16) > now + _CLOCKS:
        refuse("/id", "the time of the id is in the future", "maximum")


def refuse(pointer: str, message: str, reason: str) -> NoReturn:
    raise BadRequest.of_member(pointer, message, reason)
