"""Translates the messages of a request into events and identify requests, and the results into the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from ingestd.api.errors import BadRequest, Refused
from ingestd.api.events import Session
from ingestd.api.intake import Message, Translation, visitor_of_user
from ingestd.api.times import by_our_clock, parse_time
from ingestd.support.ids import named_uuid
from ingestd.support.json_text import decode_json
from ingestd.support.unusable_ids import UnusableIds

from .names import EventNames

__all__ = ["OK", "SegmentTranslation"]

OK = b'{"success":true}'

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_LARGEST_WHOLE = 2**53
_MOST_TOLD = 64 * 1024  # bytes of rejections in an answer; behind them a message has its index and code
_LONGEST_SHOWN = 100  # characters of an unknown name in an answer


class SegmentTranslation(Translation):
    def __init__(
        self,
        tenant: str,
        envelope: Mapping[str, Any],
        names: EventNames,
        unusable_ids: UnusableIds,
        *,
        received_at: int,
        type_: str | None,
        relayed: bool,
        accepts_unknown: bool,
    ) -> None:
        """`type_` is the type of all messages. None: each message has a type. `relayed` is as in `Message`."""
        self._tenant = tenant
        self._received_at = received_at
        self._relayed = relayed
        self._type = type_
        self._sent_at = _instant(envelope.get("sentAt"))
        context = envelope.get("context")
        # As JSON, because each message needs a copy: plugins change the context of an event in place.
        self._context = msgspec.json.encode(_without_nulls(context)) if isinstance(context, dict) and context else None
        self._names = names
        self._unusable_ids = unusable_ids
        self._accepts_unknown = accepts_unknown
        self._said: dict[int, tuple[str, str | None]] = {}
        """The type and the key of each message that could be read, by its index."""

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message:
        if b"null" in raw:
            _without_nulls(message)
        message.pop("writeKey", None)
        type_ = message.pop("type", None)
        if self._type is not None:
            type_ = self._type
        read = _READERS.get(type_) if isinstance(type_, str) else None
        if read is None:
            _refuse("/type", f"expected {', '.join(_READERS)}", "enum")
        at = self._time(message)
        has_schema = read(self, message)
        key = message.get("key")
        self._said[index] = type_, key
        links = self._take_ids(message)
        self._take_context(message)
        kind: Literal["event", "identify"] = "identify" if key is None else "event"
        return Message(kind, message, at, has_schema, links, self._relayed, texts_as_numbers=True)

    def answer(self, results: Sequence[Session | Refused]) -> bytes | Refused:
        refused = [(index, result) for index, result in enumerate(results) if isinstance(result, Refused)]
        if not refused:
            return OK
        for _, result in refused:
            if result.status >= 500 or result.status == 429:  # SDKs send the request again, but never a single message
                return result
        told, texts = 0, []
        for index, result in refused:
            if told < _MOST_TOLD:
                texts.append(msgspec.json.encode(self._rejection(index, result)))
                told += len(texts[-1])
            else:
                texts.append(f'{{"index":{index},"code":"{result.code}"}}'.encode())
        return b'{"success":true,"rejected":[%b]}' % b",".join(texts)

    def _rejection(self, index: int, refused: Refused) -> dict[str, Any]:
        _, key = self._said.get(index, ("", None))
        pointers = [self.pointer(index, error.pointer) for error in refused.errors]
        message = f"{pointers[0]}: {refused.errors[0].message}" if pointers else refused.detail
        key = None if key is None else key[:_LONGEST_SHOWN]
        return {"index": index, "key": key, "code": refused.code, "message": message, "pointers": pointers}

    def pointer(self, index: int, pointer: str) -> str:
        type_, _ = self._said.get(index, ("", None))
        if type_ == "track" and pointer == "/key":
            return "/event"
        if pointer == "/data" or pointer.startswith("/data/"):
            return f"/properties{pointer[5:]}"
        return "/previousId" if type_ == "alias" and pointer == "/anonymousId" else pointer

    # What each type of message becomes. Each method leaves the body in `message`, and returns whether it has a schema.

    def _track(self, message: dict[str, Any]) -> bool:
        name = message.pop("event", None)
        if not isinstance(name, str) or not name:
            _refuse("/event", "expected the name of the event", "required")
        key = self._names.find(name)
        message["key"] = key or name
        message["data"] = _map(message.pop("properties", None))
        return key is not None or not self._accepts_unknown

    def _page(self, message: dict[str, Any]) -> bool:
        data = message["data"] = _map(message.pop("properties", None))
        if isinstance(data, dict):
            for name in ("name", "category"):
                if name in message:
                    data[name] = message.pop(name)
        message["key"] = "Page View"
        return True

    def _identify(self, message: dict[str, Any]) -> bool:
        traits = _map(message.pop("traits", None))
        context = message.get("context")
        if traits == {} and isinstance(context, dict):
            traits = decode_json(msgspec.json.encode(_map(context.get("traits"))))  # so that a plugin can change either
        message["traits"] = traits
        message.pop("key", None)
        return True

    def _group(self, message: dict[str, Any]) -> bool:
        group = _id(message.pop("groupId", None))
        if not isinstance(group, str) or not group:
            _refuse("/groupId", "expected the id of the group", "required")
        message["traits"] = {"groups": {group: _map(message.pop("traits", None))}}
        message.pop("key", None)
        return True

    def _alias(self, message: dict[str, Any]) -> bool:
        if not message.get("userId"):
            _refuse("/userId", "required, but missing", "required")
        previous = message.pop("previousId", None)
        if previous is not None:
            message["anonymousId"] = previous
        message.pop("traits", None)
        message.pop("key", None)
        return True

    # Parts that all types have

    def _time(self, message: dict[str, Any]) -> int | None:
        """The time of the event by the daemon's clock. The client's clock may be wrong by any amount.

        RudderStack's SDK for Node.js adds `originalTimestamp`, the time of the call. Then `timestamp` is the caller's.
        A message with `receivedAt` comes from the vendor's server, which has corrected `timestamp`.
        """
        sent = message.pop("sentAt", None)
        sent_at = self._sent_at if sent is None else _instant(sent)
        if "receivedAt" in message and _instant(message.get("timestamp")) is not None:
            sent_at = None
        at = None
        for name in ("timestamp", "originalTimestamp"):
            text = message.get(name)
            if text is not None:
                instant = _instant(text)
                if instant is not None:
                    del message[name]
                    at = instant if at is None else at
        if at is None or sent_at is None:
            return at
        return by_our_clock(at, sent_at, self._received_at)

    def _take_ids(self, message: dict[str, Any]) -> bool:
        """Bring the ids into their form. Returns whether the visitor was derived from the user."""
        user, visitor = _take_id(message, "userId"), _take_id(message, "anonymousId")
        _take_id(message, "messageId")
        if visitor is not None or not isinstance(user, str):
            return False
        if user in self._unusable_ids:  # many people have it, so it is no visitor either
            message["anonymousId"] = user
            return False
        message["anonymousId"] = visitor_of_user(self._tenant, user)
        return True

    def _take_context(self, message: dict[str, Any]) -> None:
        context = _map(message.get("context"))
        message["context"] = context
        if type(context) is not dict:
            return
        if self._context is not None:
            context = message["context"] = {**decode_json(self._context), **context}
        for name in ("campaign", "page"):
            if context.get(name) == []:
                context[name] = {}
        session = message.get("sessionId")
        if session is None:
            session = context.get("sessionId")
        if session is not None:
            self._take_session(message, session)

    def _take_session(self, message: dict[str, Any], session: object) -> None:
        """RudderStack numbers the sessions of a visitor."""
        text = _id(session)
        visitor = message.get("anonymousId")
        if not isinstance(text, str) or not isinstance(visitor, str):
            return
        if text.isascii() and text.isdigit():
            message["sessionId"] = named_uuid("numbered session", self._tenant, visitor, text)
        elif _UUID.fullmatch(text):
            message["sessionId"] = text


_READERS: Mapping[str, Callable[[SegmentTranslation, dict[str, Any]], bool]] = {
    "track": SegmentTranslation._track,
    "page": SegmentTranslation._page,
    "screen": SegmentTranslation._page,
    "identify": SegmentTranslation._identify,
    "group": SegmentTranslation._group,
    "alias": SegmentTranslation._alias,
}


def _without_nulls(members: dict[str, Any]) -> dict[str, Any]:
    """Remove the members that are null, at any depth. For these clients they are absent."""
    for name in [name for name, value in members.items() if value is None]:
        del members[name]
    for value in members.values():
        if type(value) is dict:
            _without_nulls(value)
        elif type(value) is list:
            _without_nulls_inside(value)
    return members


def _without_nulls_inside(values: list[Any]) -> None:
    for value in values:
        if type(value) is dict:
            _without_nulls(value)
        elif type(value) is list:
            _without_nulls_inside(value)


def _map(value: Any) -> Any:
    """PHP writes an empty map as an empty array."""
    return {} if value is None or value == [] else value


def _id(value: Any) -> Any:
    """Shops have numbers as ids, and SDKs send them so. 17.0 is 17: languages without whole numbers write it so.

    Beyond 2⁵³ different numbers with a point are the same one in memory, so these are no ids.
    """
    if type(value) is float and value.is_integer() and abs(value) < _LARGEST_WHOLE:
        return str(int(value))
    return str(value) if type(value) is int else value


def _take_id(message: dict[str, Any], name: str) -> Any:
    """Bring an id into its form, and return it; None if it is absent. An empty id is absent."""
    value = message.get(name)
    if type(value) is str and value:
        return value
    if value is None or value == "":
        message.pop(name, None)
        return None
    value = message[name] = _id(value)
    return value


def _instant(text: object) -> int | None:
    return parse_time(text) if isinstance(text, str) else None


def _refuse(pointer: str, message: str, reason: str) -> NoReturn:
    raise BadRequest.of_member(pointer, message, reason)
