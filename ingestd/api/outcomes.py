"""Closed lists: the outcomes of events, the reasons of requests refused early, the reasons of ignored timestamps."""

from __future__ import annotations

from enum import Enum

__all__ = ["IgnoredTimestamp", "Outcome", "Refusal"]


class Outcome(Enum):
    __hash__ = object.__hash__  # asked for with every event, and Enum's own is written in Python

    ACCEPTED = "accepted"  # stored, answered 200
    DUPLICATE = "duplicate"  # its messageId was stored before, answered as then
    DROPPED = "dropped"  # prepare or filter_event gave a reason, answered 200, not stored
    INVALID = "invalid"  # 400, 408, 415, 431
    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    UNKNOWN_KEY = "unknown_key"  # 404
    TOO_LARGE = "too_large"  # 413
    LIMITED = "limited"  # 429
    UNAVAILABLE = "unavailable"  # 503
    FAILED = "failed"  # 500


class Refusal(Enum):
    """Why a connection or a request was refused for how it came, whatever it says."""

    MALFORMED = "malformed"  # 400
    TIMEOUT = "timeout"  # 408
    HEADERS_TOO_LARGE = "headers_too_large"  # 431
    TOO_MANY_CONNECTIONS = "too_many_connections"  # 503
    TOO_MANY_OF_ADDRESS = "too_many_of_address"  # 503
    TOO_MUCH_BUFFERED = "too_much_buffered"  # 503


class IgnoredTimestamp(Enum):
    """Why the `timestamp` of an event was not taken as its time."""

    UNPARSABLE = "unparsable"  # no RFC 3339 text
    UNSET = "unset"  # before 2000: a clock or a field that nobody set
    TOO_OLD = "too_old"  # with a public key, more than 24 hours before receipt
    FUTURE = "future"  # later than receipt
