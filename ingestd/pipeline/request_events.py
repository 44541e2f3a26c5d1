"""The events of one request: each is read as if it had come alone, and ends with a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from ingestd.api.errors import Refused, TooLarge
from ingestd.api.events import Endpoint, Event, Principal, Request
from ingestd.api.intake import Message, Translation
from ingestd.hooks.caller import HookFailure
from ingestd.validation.fault_budget import FaultBudget
from ingestd.validation.validator import parse_body

from .event_parser import EventParser
from .processor import Result
from .resolver import Resolved

__all__ = ["ObservedEvents", "RequestEvents", "Sent"]


class Sent(msgspec.Struct, rename="camel", gc=False):
    """Members of a body or a record, of any type.

    A tuple for each event of a batch would keep the garbage collector busy.
    """

    key: Any = None
    anonymous_id: Any = None
    user_id: Any = None


class RequestEvents:
    """Reads the events of a request in order. For each it notes the endpoint and the key that metrics count it for."""

    __slots__ = ("_ended", "_faults", "_parser", "endpoints", "keys", "principal", "request", "translation")

    sent: Mapping[int, Sent] = MappingProxyType({})
    """What the body of each event says about it, by its index."""

    def __init__(self, parser: EventParser, request: Request, principal: Principal, translation: Translation) -> None:
        self.endpoints: list[Endpoint] = []
        self.keys: list[str] = []
        self._faults: FaultBudget | None = None
        self._parser = parser
        self.request = request
        self.principal = principal
        self.translation = translation
        self._ended: dict[int, Result] = {}
        """Results of events that are refused or dropped while they are read, by their index in the request."""

    def read(self, raw: bytes, record_id: str, *, max_size: int | None = None) -> Event | None:
        """The next event; None if it is refused or dropped, which `results` tells."""
        request = self.request
        endpoint, key = request.endpoint, ""
        if max_size is not None and self._faults is None:
            self._faults = FaultBudget()
        try:
            if max_size is not None and len(raw) > max_size:
                raise TooLarge(f"The event is larger than {max_size} bytes.")
            message = self._translate(parse_body(raw), raw)
            if message.kind == "event":
                key = self._parser.key_of(message.body)
            else:
                endpoint = endpoint.identify
            read = self._parser.read(request, self.principal, message, record_id=record_id, faults=self._faults)
        except (Refused, HookFailure) as error:
            # Without the traceback: it refers to this frame, and so to the whole request.
            self._ended[len(self.keys)] = error.with_traceback(None)
            return None
        else:
            if not isinstance(read, Resolved):
                return read
            self._ended[len(self.keys)] = read
            return None
        finally:
            self.endpoints.append(endpoint)
            self.keys.append(key)

    def _translate(self, body: dict[str, Any], raw: bytes) -> Message:
        try:
            return self.translation.read(len(self.keys), body, raw)
        except Refused:
            raise
        except Exception as error:
            raise HookFailure(self.request.endpoint.value, "Translation.read") from error

    def results(self, stored: Sequence[Result]) -> Sequence[Result]:
        """The result of each event. `stored` has the results of the events that `read` has returned."""
        if not self._ended:
            return stored
        rest = iter(stored)
        return [self._ended[index] if index in self._ended else next(rest) for index in range(len(self.keys))]


class ObservedEvents(RequestEvents):
    """Notes `sent` for an observer."""

    __slots__ = ("sent",)

    sent: dict[int, Sent]

    def _translate(self, body: dict[str, Any], raw: bytes) -> Message:
        message = RequestEvents._translate(self, body, raw)  # `super()` takes longer
        get = message.body.get
        self.sent[len(self.keys)] = Sent(get("key"), get("anonymousId"), get("userId"))
        return message
