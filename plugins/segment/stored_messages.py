"""Messages from files: archives of Segment and RudderStack, exports of warehouses, logs of SDKs."""

from __future__ import annotations

from typing import Any

import msgspec

from ingestd.api.errors import BadRequest
from ingestd.api.intake import Message
from ingestd.api.times import parse_time

from .translation import SegmentTranslation

__all__ = ["StoredMessages"]


class StoredMessages(SegmentTranslation):
    """Translates messages that were received long ago, mostly by another server."""

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message:
        self._said.clear()  # there may be millions of messages
        received_at = _take_instant(message, "receivedAt")
        if received_at is not None:
            self._received_at = received_at
            if isinstance(message.get("timestamp"), str) and parse_time(message["timestamp"]) is not None:
                message.pop("sentAt", None)  # the server has corrected this time by the clock of the client
        else:
            message.pop("sentAt", None)  # without a time of receipt it does not tell how wrong the clock was
        read = super().read(index, message, raw)
        at = received_at if read.at is None else read.at
        return msgspec.structs.replace(read, at=at, received_at=received_at)


def _take_instant(message: dict[str, Any], name: str) -> int | None:
    text = message.get(name)
    if text is None:
        return None
    instant = parse_time(text) if isinstance(text, str) else None
    if instant is None:
        raise BadRequest.of_member(f"/{name}", "expected an RFC 3339 time", "format")
    del message[name]
    return instant
