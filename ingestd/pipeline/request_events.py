"""The events of one request: each is read as if it had come alone, and ends with a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ingestd.api.errors import BadRequest, Refused, SchemaFault, SchemaViolation, TooLarge
from ingestd.api.events import Endpoint, Event, Principal, Request
from ingestd.hooks.caller import HookFailure
from ingestd.validation.validator import parse_body

from .event_parser import EventParser, Kind
from .processor import Result
from .resolver import Resolved

__all__ = ["RequestEvents"]


class RequestEvents:
    """Reads the events of a request in order. For each it notes the endpoint and the key that metrics count it for."""

    __slots__ = ("_ended", "_parser", "_principal", "_request", "endpoints", "keys")

    def __init__(self, parser: EventParser, request: Request, principal: Principal) -> None:
        self.endpoints: list[Endpoint] = []
        self.keys: list[str] = []
        self._parser = parser
        self._request = request
        self._principal = principal
        self._ended: dict[int, Result] = {}
        """Results of events that are refused or dropped while they are read, by their index in the request."""

    def read(self, raw: bytes, record_id: str, *, max_size: int | None = None) -> Event | None:
        """The next event; None if it is refused or dropped, which `results` tells."""
        request = self._request
        endpoint, key = request.endpoint, ""
        try:
            if max_size is not None and len(raw) > max_size:
                raise TooLarge(f"The event is larger than {max_size} bytes.")
            body = parse_body(raw)
            kind: Kind = "identify" if endpoint.identifies else "event"
            if request.batch:
                kind = _take_kind(body)
                if kind == "identify":
                    endpoint = Endpoint.IDENTIFY
            if kind == "event":
                key = self._parser.key_of(body)
            read = self._parser.read(request, self._principal, body, kind=kind, record_id=record_id)
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

    def read_all(self, bodies: Iterable[tuple[Any, str]], max_size: int) -> Iterator[Event | None]:
        """The events of bodies with their record ids, each read when the caller asks for it."""
        for raw, record_id in bodies:
            yield self.read(bytes(raw), record_id, max_size=max_size)

    def results(self, stored: Sequence[Result]) -> Sequence[Result]:
        """The result of each event. `stored` has the results of the events that `read` has returned."""
        if not self._ended:
            return stored
        rest = iter(stored)
        return [self._ended[index] if index in self._ended else next(rest) for index in range(len(self.keys))]


def _take_kind(body: dict[str, Any]) -> Kind:
    """Take the member `type` out of a body: it belongs to the batch format, not to the event."""
    kind: Kind = body.pop("type", "event")
    if kind not in ("event", "identify"):
        fault = SchemaViolation("/type", 'expected "event" or "identify"')
        raise BadRequest(
            f"{fault.pointer}: {fault.message}",
            code="invalid_envelope",
            errors=[fault],
            fault=SchemaFault(fault.pointer, "enum"),
        )
    return kind
