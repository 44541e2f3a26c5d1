"""The contract of a transform, a function that changes the records for one sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Transform"]

Transform = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Takes the JSON object of a record, and returns the object for the sink, or None to leave the record out.

It may change the object that it is given. The `id` must stay. It runs on the event loop and must not block it. If it
raises, the record becomes a dead letter of the sink.
"""
