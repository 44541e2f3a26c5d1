"""The closed list of what becomes of an event. Every event ends in exactly one of these."""

from __future__ import annotations

from enum import Enum

__all__ = ["Outcome"]


class Outcome(Enum):
    ACCEPTED = "accepted"  # stored, answered 200
    DUPLICATE = "duplicate"  # its messageId was stored before, answered as then
    DROPPED = "dropped"  # a filter_event hook gave a reason, answered 200, not stored
    INVALID = "invalid"  # 400, 415
    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    UNKNOWN_KEY = "unknown_key"  # 404
    TOO_LARGE = "too_large"  # 413
    LIMITED = "limited"  # 429
    UNAVAILABLE = "unavailable"  # 503
    FAILED = "failed"  # 500
