"""The JetStream stream: its subjects, finding, creating and checking it, and reading its answers to messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ingestd.api.errors import SinkFailure, SinkRetry

from .client import NOBODY, Connection

if TYPE_CHECKING:
    from . import NatsOptions

__all__ = ["Stream", "Subject"]

_PLACEHOLDER = re.compile(r"\{(type|tenant|key)\}")
_UNSAFE = re.compile(r"[\s.*>$\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST = 100  # characters of a token: servers accept lines of up to 4096 bytes

# Values of JetStream's err_code
_TOO_LARGE, _NO_STREAM = 10054, 10059
_OF_SERVER = {
    10002, 10005, 10120,  # the account has no resources left, no server for the stream, no limits
    10109, 10158,  # the stream is sealed, or is storing this very message
}  # fmt: skip
"""Failures of the stream or its server although their `code` is not one of a server's failure."""

_DUPLICATE_WINDOW = 120 * 1_000_000_000  # nanoseconds for which a new stream remembers ids


class Subject:
    """A template for subjects. Raises `ValueError`."""

    def __init__(self, template: str) -> None:
        text = _PLACEHOLDER.sub("x", template)
        if "{" in text or "}" in text:
            raise ValueError(f"expected no {{}} except {{type}}, {{tenant}} and {{key}}, got {template!r}")
        if not all(text.split(".")) or re.search(r"[\s*>\x00-\x1f\x7f]", text):
            raise ValueError(f"expected tokens separated by dots, without spaces, * and >, got {template!r}")
        if text.startswith(("$", "_INBOX.")):
            raise ValueError(f"expected a subject that NATS does not reserve, got {template!r}")
        if len(text.encode()) > 1000:
            raise ValueError("expected at most 1000 bytes")
        self._template = template
        self.pattern = ".".join("*" if _PLACEHOLDER.search(each) else each for each in template.split("."))
        """The subject with wildcards that matches all subjects of the template."""

    def of(self, value: Mapping[str, Any]) -> str:
        """The subject of a record. `_` replaces missing values and characters that a subject cannot have."""
        return _PLACEHOLDER.sub(
            lambda match: _UNSAFE.sub("_", str(value.get(match[1]) or "")[:_LONGEST]) or "_", self._template
        )

    def may_be(self, subject: str) -> bool:
        """Whether `subject` of a stream, which may have wildcards, matches some subjects of the template."""
        ours, theirs = self.pattern.split("."), subject.split(".")
        for our, their in zip(ours, theirs, strict=False):
            if their == ">":
                return True
            if our != their and "*" not in {our, their}:
                return False
        return len(ours) == len(theirs)


class Stream:
    """The stream. Raises `SinkRetry` for its failures, and `SinkFailure` for other refusals of a message."""

    def __init__(self, options: NatsOptions, subject: Subject) -> None:
        self._name = options.stream
        self._may_create = options.create
        self._subject = subject
        self._duplicate_window = _DUPLICATE_WINDOW

    async def ensure(self, connection: Connection) -> None:
        """Create the stream if it does not exist."""
        if await self._find(connection) is None:
            await self._create(connection)

    async def check(self, connection: Connection) -> None:
        info = await self._find(connection)
        if info is None:
            return
        config, state = info["config"], info["state"]
        subjects = config.get("subjects") or []
        if not any(self._subject.may_be(each) for each in subjects):
            taken = ", ".join(subjects) or "no subject"
            raise SinkRetry(f"the stream {self._name} takes {taken}, and not {self._subject.pattern}")
        limits = [(config["max_msgs"], state["messages"]), (config["max_bytes"], state["bytes"])]
        if config["discard"] == "new" and any(0 <= limit <= there for limit, there in limits):
            raise SinkRetry(f"the stream {self._name} is full and discards new messages")

    def refusal(self, answer: Mapping[str, Any], subject: str) -> str | None:
        """The reason why the stream will never take a message with this answer. None if it has taken the message.

        Raises `SinkRetry` or `SinkFailure` for any other answer.
        """
        if answer.get("status") == NOBODY:
            raise SinkRetry(f"no stream takes the subject {subject}")
        error = answer.get("error")
        if error is None and answer.get("stream") == self._name:  # refusals name the stream too
            return None
        if error is None:
            raise SinkRetry(f"something other than the stream {self._name} answers the subject {subject}")
        reason = f"the stream {self._name} refuses it: {error.get('description')}"
        if error.get("err_code") == _TOO_LARGE:
            return reason
        if _is_of_server(error):
            raise SinkRetry(reason)
        raise SinkFailure(reason)

    async def _find(self, connection: Connection) -> Mapping[str, Any] | None:
        """The stream's info, or None if the stream is to be created."""
        answer = await connection.call(f"STREAM.INFO.{self._name}", {})
        error = answer.get("error")
        if error is None:
            if answer["config"].get("no_ack"):
                raise SinkRetry(f"the stream {self._name} acknowledges nothing (no_ack)")
            return answer
        if error.get("err_code") != _NO_STREAM:
            raise SinkRetry(f"the stream {self._name} cannot be inspected: {error.get('description')}")
        if not self._may_create:
            raise SinkRetry(f"there is no stream {self._name}, and create is false")
        return None

    async def _create(self, connection: Connection) -> None:
        config = {
            "name": self._name,
            "subjects": [self._subject.pattern],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "max_msgs": -1,
            "max_bytes": -1,
            "num_replicas": 1,
            "duplicate_window": self._duplicate_window,
        }
        answer = await connection.call(f"STREAM.CREATE.{self._name}", config)
        error = answer.get("error")
        # Another client may have created the stream first. JetStream has several errors for that.
        if error is not None and await self._find(connection) is None:
            raise SinkRetry(f"the stream {self._name} cannot be created: {error.get('description')}")


def _is_of_server(error: Mapping[str, Any]) -> bool:
    """Whether the stream would refuse any message: it is full, has no leader or no room, or is not ready."""
    code = error.get("code")
    return error.get("err_code") in _OF_SERVER or (isinstance(code, int) and (code in {408, 429} or code >= 500))
