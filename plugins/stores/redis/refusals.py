"""What an error of Redis means: whether a retry can help, and what a caller and an operator are told."""

from __future__ import annotations

import logging

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ingestd.api.errors import Unavailable

__all__ = ["LOST", "NEWER", "NoReplicas", "explain", "is_final", "refusal", "unavailable"]

_log = logging.getLogger("ingestd.redis")

LOST = "STORELOST"  # the store is not the one that this process knows, or an older state of it
NEWER = "STOREFORMAT"  # a newer version of ingestd has written the store


class NoReplicas(ResponseError):
    """Too few replicas have the write."""


# Errors of a server that takes no writes now; another server may take them. A server that loads its data is handled
# like an unreachable one.
_MOVING = (AskError, TryAgainError)  # the slot is being moved; a batch needs all keys of a slot, so it waits
_ELSEWHERE = (ReadOnlyError, MasterDownError, NoReplicas, MovedError, ClusterDownError, *_MOVING)
_TURNED = ("UNBLOCKED", "WAIT cannot be used with replica")  # the server became a replica during WAIT, or before it


def is_final(error: BaseException) -> bool:
    """Whether a retry on the same server fails too."""
    if isinstance(error, NoScriptError):  # the scripts were flushed; the next connection loads it again
        return False
    if isinstance(error, _ELSEWHERE) or str(error).startswith(_TURNED):
        return False
    return isinstance(error, AuthenticationError | ResponseError)


def explain(error: BaseException) -> str:
    """Why Redis did not do an operation, in a few words for an operator."""
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return "Redis does not answer"
    if isinstance(error, _MOVING):
        return "its slot is being moved to another node"
    if isinstance(error, MovedError):
        return "its slot has moved to another node"
    return str(error).removeprefix(f"{LOST} ").removeprefix(f"{NEWER} ").rstrip(".") or type(error).__name__


def unavailable(problem: str) -> Unavailable:
    """The error for a caller, while the store has this problem."""
    # The answer has no reason: it names servers, which a browser must not see.
    return Unavailable(
        "Events cannot be stored at the moment. Send the request again.",
        reason=f"the store cannot be used now: {problem}",
    )


def refusal(message: str) -> Unavailable:
    """The error for an operation that Redis could not do. Logs the reason."""
    _log.error("an operation failed: %s", message)
    return unavailable(message)
