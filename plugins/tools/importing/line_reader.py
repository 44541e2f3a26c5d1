"""Reads a line of a file into an event, or into a record that is stored as it is."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.errors import BadRequest, CommandError, Refused, SchemaViolation, TooLarge, UnknownKey
from ingestd.api.events import Endpoint, Event, Principal, Record, Request
from ingestd.api.imported import Imported
from ingestd.api.intake import Intake, Message, Translation
from ingestd.api.outcomes import IgnoredTimestamp
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.observability.unusable_id_reports import IdField
from ingestd.pipeline.event_parser import EventParser
from ingestd.pipeline.resolver import Resolved
from ingestd.support.ids import named_time_uuid
from ingestd.support.unusable_ids import UnusableIds
from ingestd.validation.payload_schemas import PayloadSchemas
from ingestd.validation.validator import Validator, parse_body

from .lines import ARRAY, Line
from .record_forms import (
    FORMS,
    Attribution,
    DerivedRecord,
    ImportMark,
    ReceivedRecord,
    check_id,
    convert,
    instant,
    refuse,
)

__all__ = ["Item", "LineReader"]

ORDER = "Order Completed"
_TYPES = [*FORMS]
"""The types of records, in a list, because a line may have any value as its type."""


class Item(NamedTuple):
    """What a line becomes. `content` is None for an event that a plugin drops, or that attribution derives again."""

    id: str
    tenant: str
    type: str
    content: Event | Record | None
    message: tuple[str, str] | None = None
    """The tenant and the id of the message."""
    received_at: int = 0
    is_record: bool = True
    person: tuple[str, str | None, str | None] | None = None
    """The tenant, the anonymousId and the userId. None if the record is about nobody, or about a person's erasure."""
    former: int = 0
    """The position at which the journal has it without state; 0 if it is new."""
    cause: str | None = None
    """The id of the event from which attribution derives it again."""

    @property
    def is_order(self) -> bool:
        return isinstance(self.content, Event) and self.content.key == ORDER

    def again(self, former: int) -> Item:
        """The item, to be stored once more."""
        if isinstance(self.content, Event) and self.content.imported is not None:
            self.content.imported = msgspec.structs.replace(self.content.imported, is_repeated=True)
        return self._replace(former=former)


class LineReader:
    """Reads either records of any daemon, or messages in the format of an intake.

    `now` is the time of the import in milliseconds, which the caller sets for the lines that follow.
    """

    def __init__(
        self,
        config: Config,
        plugins: Plugins,
        validator: Validator,
        *,
        intake: Intake | None,
        tenant: str | None,
        changes_state: bool,
    ) -> None:
        """With `intake` all lines are messages in its format, of `tenant`. Without it all are records.

        Then `tenant` is the only one whose records are taken, if it is given.
        """
        self.now = times.now()
        self.changes_state = changes_state
        self._max_body = int(config.http.max_body)
        self._tenant = tenant
        self._intake = intake
        self._intakes = {each.endpoint.value for each in plugins.intakes}
        self._messages: Translation | None = None
        if intake is not None and tenant is not None:
            self._messages = intake.begin_import(tenant, validator.keys)
            if self._messages is None:
                raise CommandError(f"the configuration takes no {intake.endpoint.value} for the tenant {tenant}")
            self._messages.check = PayloadSchemas(intake).check
        self._ignored: IgnoredTimestamp | None = None
        unusable_ids = UnusableIds(config.ids.unusable)
        self._parser = EventParser(validator, plugins.hooks, self, unusable_ids=unusable_ids)

    def read(self, content: bytes) -> Sequence[Item]:
        """The items of a line. A message may become several. Raises `Refused`, with the places of all faults in it."""
        if content.startswith(b"["):
            raise BadRequest(ARRAY, code="not_an_object")
        line = parse_body(content)
        return [self._read_record(line)] if self._intake is None else self._read_message(line, content)

    def reads_order(self, line: Line) -> bool:
        """Whether a line is an order."""
        try:
            return line.fault is None and any(item.is_order for item in self.read(line.content))
        except Refused:
            return False

    # Records

    def _read_record(self, line: dict[str, Any]) -> Item:
        form = convert(line)
        if self._tenant is not None and form.tenant != self._tenant:
            refuse("/tenant", f"the record is of another tenant than {self._tenant}", "const")
        check_id(form.id, self.now)
        if not isinstance(form, ReceivedRecord):
            return self._keep_derived(line, form)
        received_at = instant("/receivedAt", form.received_at, self.now)
        timestamp = instant("/timestamp", form.timestamp, self.now)
        if form.erased:
            return self._keep_blank(line, form, received_at)
        is_event = form.type == "event"
        others = {"traits": form.traits} if is_event else {"key": form.key, "data": form.data}
        for name, value in others.items():
            if value is not msgspec.UNSET:
                refuse(f"/{name}", f"not a member of a record of the type {form.type}", "additionalProperties")
        given = {
            "anonymousId": form.anonymous_id, "context": form.context, "key": form.key, "data": form.data,
            "traits": form.traits, "sessionId": form.session_id, "dispatchId": form.dispatch_id,
            "messageId": form.message_id,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not msgspec.UNSET and value is not None}
        body = {**form.extra, **given, "userId": form.user_id}
        has_schema = not is_event or self._parser.key_of(body) != "" or form.origin not in self._intakes
        message = Message(form.type, body, timestamp, has_schema, relayed=True)
        signed = form.origin == "customer-events" if form.signed is None else form.signed
        principal = Principal(form.tenant, "", signed=signed)
        event = self._parse(message, principal, form.id, received_at)
        if self._ignored is not None:
            refuse("/timestamp", "the time is after receivedAt", "maximum")
        sent = None if form.message_id is None else (form.tenant, form.message_id)
        person = (form.tenant, form.anonymous_id, form.user_id or None)
        item = Item(form.id, form.tenant, form.type, event, sent, received_at, person=person)
        if event is not None:
            event.session_is_new, event.linked = form.session_is_new, form.linked
            event.imported = Imported(form.origin, received_at, is_record=True, changes_state=self.changes_state)
        return item

    def _keep_derived(self, line: dict[str, Any], form: DerivedRecord) -> Item:
        type_ = line["type"]
        name = "erasedAt" if type_ == "erasure" else "decidedAt"
        decided_at = instant(f"/{name}", line[name], self.now)
        if self.changes_state and type_ != "erasure":
            # Attribution derives it from the imported events, with the same id.
            return Item(form.id, form.tenant, type_, None, cause=line.get("orderEventId") or line.get("cause"))
        person = (form.tenant, form.anonymous_id, form.user_id) if isinstance(form, Attribution) else None
        record = self._marked(line, ImportMark())
        return Item(form.id, form.tenant, type_, record, received_at=decided_at, person=person)

    def _keep_blank(self, line: dict[str, Any], form: ReceivedRecord, received_at: int) -> Item:
        """The record of a forgotten person. The schemas require ids and data, which it does not have."""
        if not form.is_blank:
            refuse("/erased", "the record still has ids or content of the person", "const")
        line["endpoint"] = Endpoint.IMPORT.value
        record = self._marked(line, ImportMark(form.origin))
        return Item(form.id, form.tenant, form.type, record, received_at=received_at)

    def _marked(self, line: dict[str, Any], mark: ImportMark) -> Record:
        told: dict[str, Any] = {"at": times.format_time(self.now), "state": self.changes_state}
        line["import"] = {"endpoint": mark.endpoint, **told} if mark.endpoint else told
        return Record(line["type"], self.now, msgspec.json.encode(line))

    # Messages

    def _read_message(self, line: dict[str, Any], content: bytes) -> Sequence[Item]:
        assert self._messages is not None
        assert self._tenant is not None
        if line.get("type") in _TYPES and "tenant" in line:
            refuse("", "a record of ingestd, in a file of messages", "const")
        if len(content) > self._max_body:
            raise TooLarge(f"The message is larger than {self._max_body} bytes.")
        read = self._messages.read(0, line, content)
        messages = [read] if isinstance(read, Message) else read
        sender = self._messages.sender or Principal(self._tenant, "")
        try:
            return [
                self._parse_message(message, f"{number or ''}".encode() + content, sender)
                for number, message in enumerate(messages)
            ]
        except Refused as refused:
            refused.errors = [
                SchemaViolation(self._messages.pointer(0, error.pointer), error.message) for error in refused.errors
            ]
            raise

    def _parse_message(self, message: Message, content: bytes, sender: Principal) -> Item:
        """`content` differs for each message of a line."""
        assert self._intake is not None
        tenant = sender.tenant
        received_at = self.now if message.received_at is None else message.received_at
        if message.at is None:
            refuse("/timestamp", "required, but missing or no RFC 3339 time", "required")
        if received_at > self.now:
            refuse("/receivedAt", "the time is in the future", "maximum")
        message_id = message.body.get("messageId")
        # Without a message id, equal lines are the same event.
        name = message_id if isinstance(message_id, str) else blake2b(content, digest_size=16).hexdigest()
        record_id = named_time_uuid(max(0, message.at), "imported message", tenant, name)
        event = self._parse(message, sender, record_id, received_at)
        # A time after the receipt becomes the time of receipt, as in a request. Without one, the time cannot be right.
        if self._ignored is IgnoredTimestamp.FUTURE and message.received_at is None:
            refuse("/timestamp", "the time is in the future", "maximum")
        if self._ignored is IgnoredTimestamp.UNSET:
            refuse("/timestamp", "the time is before the year 2000, so it was not set", "minimum")
        if event is not None:
            endpoint = self._intake.endpoint.value
            event.imported = Imported(endpoint, received_at, is_record=False, changes_state=self.changes_state)
        sent = (tenant, message_id) if isinstance(message_id, str) else None
        person = None if event is None else (tenant, event.anonymous_id, event.user_id)
        return Item(record_id, tenant, message.kind, event, sent, received_at, is_record=False, person=person)

    def _parse(self, message: Message, principal: Principal, record_id: str, received_at: int) -> Event | None:
        """The event, or None if a plugin drops it. Sets `_ignored` if its time was replaced by the time of receipt."""
        request = Request(Endpoint.IMPORT, {}, b"", received_at=received_at, id=record_id)
        self._ignored = None
        try:
            event = self._parser.read(request, principal, message, record_id=record_id)
        except UnknownKey as refused:
            refused.errors = [SchemaViolation("/key", refused.detail)]
            raise
        if isinstance(event, Resolved):
            return None
        event.received_at = self.now
        event.session_id = None if event.session_id is None else event.session_id.lower()
        return event

    # Called by the parser

    def timestamp_ignored(self, reason: IgnoredTimestamp) -> None:
        self._ignored = reason

    def unusable_id(self, field: IdField) -> None:
        """Nobody sends them now."""

    def texts_as_numbers(self, count: int) -> None:
        """Nobody sends them now."""
