"""One connection, and the answers to what is sent over it.

Of nats-py it is the bare connection that is used, which neither reconnects nor holds anything back: when something
goes wrong it is cut, and the next write makes another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ingestd.api.errors import SinkFailure, SinkRetry

from .messages import Message

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["NOBODY", "Connection", "plain"]

NOBODY = "503"
"""The status of an answer that the server gives in place of those who do not listen."""

_CONNECT_TIMEOUT = 5
_ANSWER_TIMEOUT = 5
_LOOK = 0.5  # seconds after which it is looked again whether the connection is still there


class Connection:
    """Whoever meets an error is to close it."""

    def __init__(self, client: Client, place: str, needs_tls: bool) -> None:
        self.needs_tls = needs_tls
        self._client = client
        self._place = place
        self._inbox = ""
        self._sent = 0
        self._error: Exception | None = None

    async def begin(self, access: Mapping[str, Any]) -> None:
        """Connect. Raises whatever nats-py does."""
        await self._client.connect(
            f"nats://{self._place}",
            name="ingestd",
            error_cb=self._note,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            connect_timeout=_CONNECT_TIMEOUT,
            pending_size=0,  # else publishing may wait, and keep to itself that it was cancelled meanwhile
            **access,
        )
        self._inbox = self._client.new_inbox()
        self._answers = await self._client.subscribe(f"{self._inbox}.*")
        transport = self._transport
        if transport is not None:
            # nats-py's close() waits as long as it may not write, which a server that hangs makes for ever.
            transport.set_write_buffer_limits(high=1 << 62)
        self.expect_encrypted()

    def expect_encrypted(self) -> None:
        """Raise where there must be TLS and is none."""
        import nats.errors

        transport = self._transport
        if self.needs_tls and (transport is None or transport.get_extra_info("ssl_object") is None):
            raise nats.errors.SecureConnWantedError

    @property
    def is_lost(self) -> bool:
        return not self._client.is_connected

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    async def call(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask JetStream itself. Raises `SinkRetry`, also where it does not answer though its server is there."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                (answer,) = await self.ask([Message(f"$JS.API.{operation}", msgspec.json.encode(request))])
        except TimeoutError:
            raise SinkRetry(f"{self._place}: JetStream does not answer within {_ANSWER_TIMEOUT} s") from None
        except SinkFailure as error:  # of no record
            raise SinkRetry(str(error)) from error
        if answer.get("status") == NOBODY:
            raise SinkRetry(f"{self._place}: JetStream is not enabled, for this user at least")
        return answer

    async def ask(self, messages: Sequence[Message]) -> list[Mapping[str, Any]]:
        """Send all, then wait for the answer to each. Raises `SinkFailure`: what was sent may end a connection."""
        import nats.errors

        first = self._sent
        self._sent += len(messages)
        answers: dict[int, Mapping[str, Any]] = {}
        try:
            for number, message in enumerate(messages, first):
                await self._client.publish(
                    message.subject, message.body, reply=f"{self._inbox}.{number}", headers=message.headers
                )
            while len(answers) < len(messages):
                try:
                    answer = await self._answers.next_msg(timeout=_LOOK)
                except TimeoutError:
                    if self._error is not None or self.is_lost:
                        raise SinkFailure(self._why()) from None
                    continue
                number = int(answer.subject.rpartition(".")[2])
                if number >= first:  # not a second answer to something earlier
                    answers.setdefault(number, _decode(answer.data, answer.headers))
        except (nats.errors.Error, OSError) as error:
            raise SinkFailure(self._why(error)) from error
        return [answers[number] for number in range(first, self._sent)]

    async def close(self) -> None:
        """At once, whatever was under way."""
        import nats.errors

        transport = self._transport
        if transport is not None:
            transport.abort()
        if self._inbox:  # else there is nothing else to end, and it may wait for a handshake that is over
            with suppress(nats.errors.Error, OSError):
                async with asyncio.timeout(_LOOK):
                    await self._client.close()
            await asyncio.sleep(0)  # its tasks, cancelled by then, come to their end

    async def _note(self, error: Exception) -> None:
        """Told by nats-py what went wrong. While it connects it would not raise it, but try again."""
        if not self._inbox:
            raise error
        self._error = error

    @property
    def _transport(self) -> asyncio.WriteTransport | None:
        # nats-py does not show it, and has no other way to cut a connection at once.
        writer: asyncio.StreamWriter | None = getattr(self._client._transport, "_io_writer", None)
        return None if writer is None else writer.transport

    def _why(self, error: Exception | None = None) -> str:
        cause = self._client.last_error or self._error or error
        return f"{self._place}: {'the connection was lost' if cause is None else plain(cause)}"


def plain(error: Exception) -> str:
    """The library's words, without its name in front."""
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_TIMEOUT} s"
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__


def _decode(data: bytes, headers: Mapping[str, str] | None) -> Mapping[str, Any]:
    if headers is not None and "Status" in headers:
        return {"status": headers["Status"]}
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
