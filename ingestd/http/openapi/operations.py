"""The operations of the API, as an OpenAPI document names and describes them."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["OPERATIONS", "Body", "Operation"]


class Body(Enum):
    """The kind of a request's body."""

    EVENT = "event"
    IDENTIFY = "identify"
    BATCH = "batch"


class Operation(NamedTuple):
    """One path. `signed` tells whether it takes a server key with a signature, or else a public key."""

    path: str
    id: str
    body: Body
    signed: bool
    summary: str


OPERATIONS = (
    Operation("/track", "track", Body.EVENT, False, "Track an event from a browser or an app"),
    Operation(
        "/identify/public", "identifyPublic", Body.IDENTIFY, False, "Identify a visitor from a browser or an app"
    ),
    Operation("/batch", "batch", Body.BATCH, False, "Send many events and identify requests from a browser or an app"),
    Operation("/customer-events", "customerEvents", Body.EVENT, True, "Track an event from a server"),
    Operation("/identify", "identify", Body.IDENTIFY, True, "Identify a visitor from a server"),
    Operation(
        "/customer-events/batch", "customerEventsBatch", Body.BATCH, True,
        "Send many events and identify requests from a server",
    ),
)  # fmt: skip
