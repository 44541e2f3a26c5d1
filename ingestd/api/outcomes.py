"""Closed lists: outcomes of events, reasons for early refusals of requests, reasons for ignored timestamps."""

from __future__ import annotations

from enum import Enum

__all__ = ["IgnoredTimestamp", "Outcome", "Refusal"]


class Outcome(Enum):
    __hash__ = object.__hash__  # every event needs it, and the hash of Enum is slow Python code

    ACCEPTED = "accepted"  # stored, answered 200
    DUPLICATE = "duplicate"  # its messageId was stored before; the answer is the same as then
    DROPPED = "dropped"  # prepare or filter_event returned a reason; answered 200, not stored
    INVALID = "invalid"  # 400, 408, 415, 431
    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    UNKNOWN_KEY = "unknown_key"  # 404
    TOO_LARGE = "too_large"  # 413
    LIMITED = "limited"  # 429
    UNAVAILABLE = "unavailable"  # 503
    FAILED = "failed"  # 500


class Refusal(Enum):
    """Why the HTTP server refused a connection or request, regardless of its content."""

    MALFORMED = "malformed"  # 400
    TIMEOUT = "timeout"  # 408
    HEADERS_TOO_LARGE = "headers_too_large"  # 431
    TOO_MANY_CONNECTIONS = "too_many_connections"  # 503
    TOO_MANY_OF_ADDRESS = "too_many_of_address"  # 503
    TOO_MUCH_BUFFERED = "too_much_buffered"  # 503


class IgnoredTimestamp(Enum):
    """Why the `timestamp` of an event was ignored."""

    UNPARSABLE = "unparsable"  # not an RFC 3339 text
    UNSET = "unset"  # before the year 2000, so the clock or the field was not set
    TOO_OLD = "too_old"  # more than 24 hours before receipt, with a public key
    FUTURE = "future"  # after receipt
