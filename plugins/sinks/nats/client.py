"""A connection to a NATS server, and the answers to its messages.

It uses nats-py without reconnecting and without a buffer for messages. After an error the sink cuts the connection, and
the next write makes another. The futures of nats-py's `publish_async` do not serve (2.16): those of refused messages,
and all of a lost connection, never end. A message takes 24 µs of CPU with them, and 12 with the subscription here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ingestd.api.errors import SinkFailure, SinkRetry

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = ["NOBODY", "Connection", "Message", "plain"]

NOBODY = "503"
"""The status of the server's answer when no subscriber listens to a subject."""

_CONNECT_TIMEOUT = 5
_ANSWER_TIMEOUT = 5
_LOOK = 0.5  # seconds between two checks of the connection, and for its close


class Message(NamedTuple):
    subject: str
    body: bytes
    headers: dict[str, str] | None = None

    @property
    def size(self) -> int:
        """The size in bytes as the server counts it."""
        lines = [f"{name}: {value}\r\n" for name, value in (self.headers or {}).items()]
        return len("".join(["NATS/1.0\r\n", *lines, "\r\n"]).encode()) + len(self.body)


class Connection:
    """A connection. The caller must close it after any error."""

    def __init__(self, client: Client, address: str, needs_tls: bool) -> None:
        self.needs_tls = needs_tls
        self._client = client
        self._address = address
        self._inbox = ""
        self._sent = 0
        self._error: Exception | None = None
        self._expected = range(0)
        """The numbers of the messages whose answers are awaited."""
        self._answers: dict[int, Mapping[str, Any]] = {}
        self._done = asyncio.Event()
        """Set when all answers have come, or the connection is closed."""
        self._closed = asyncio.Event()
        self._answering: Subscription | None = None

    async def connect(self, access: Mapping[str, Any]) -> None:
        """Passes on errors of nats-py."""
        await self._client.connect(
            f"nats://{self._address}",
            name="ingestd",
            error_cb=self._note,
            closed_cb=self._end,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            connect_timeout=_CONNECT_TIMEOUT,
            pending_size=0,  # otherwise `publish` may wait, and swallow a cancellation
            **access,
        )
        self._inbox = self._client.new_inbox()
        self._answering = await self._client.subscribe(f"{self._inbox}.*", cb=self._take)
        transport = self._transport
        if transport is not None:
            # nats-py's close() waits while writing is paused. A server that hangs would pause it for ever.
            transport.set_write_buffer_limits(high=1 << 62)
        self.expect_encrypted()

    def expect_encrypted(self) -> None:
        """Raise an error if the connection needs TLS and has none."""
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
        """Call an operation of the JetStream API. Raises `SinkRetry`, also if JetStream does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                (answer,) = await self.ask([Message(f"$JS.API.{operation}", msgspec.json.encode(request))])
        except TimeoutError:
            raise SinkRetry(f"{self._address}: JetStream does not answer within {_ANSWER_TIMEOUT} s") from None
        except SinkFailure as error:  # not the fault of a record
            raise SinkRetry(str(error)) from error
        if answer.get("status") == NOBODY:
            raise SinkRetry(f"{self._address}: JetStream is not enabled on the server, or not for this user")
        return answer

    async def ask(self, messages: Sequence[Message]) -> list[Mapping[str, Any]]:
        """Send all messages, then wait for the answer to each. Raises `SinkFailure`: a message may end a connection."""
        import nats.errors

        self._expected = range(self._sent, self._sent + len(messages))
        self._sent += len(messages)
        self._answers.clear()
        self._done.clear()
        try:
            for number, message in zip(self._expected, messages, strict=True):
                await self._client.publish(
                    message.subject, message.body, reply=f"{self._inbox}.{number}", headers=message.headers
                )
            while len(self._answers) < len(messages):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._done.wait()
                if len(self._answers) < len(messages) and (self._error is not None or self.is_lost):
                    raise SinkFailure(self._why())
        except (nats.errors.Error, OSError) as error:
            raise SinkFailure(self._why(error)) from error
        return [self._answers[number] for number in self._expected]

    async def close(self) -> None:
        """Cut the connection at once."""
        import nats.errors

        transport = self._transport
        if transport is not None:
            transport.abort()
        if self._inbox:  # before that, there is nothing else to end, and close() may wait for a failed handshake
            with suppress(nats.errors.Error, OSError):
                async with asyncio.timeout(_LOOK):
                    if self._answering is not None:
                        with suppress(nats.errors.Error):
                            await self._answering.unsubscribe()  # close() may fail before it ends the task of this
                    await self._client.close()
                    await self._closed.wait()  # another task of nats-py may be closing it
            await asyncio.sleep(0)  # the cancelled tasks of nats-py end now

    async def _note(self, error: Exception) -> None:
        """Called by nats-py with an error. While it connects, it would otherwise not raise the error, but try again."""
        if not self._inbox:
            raise error
        self._error = error

    async def _take(self, answer: Msg) -> None:
        number = int(answer.subject.rpartition(".")[2])
        if number in self._expected:  # not a second answer to an earlier message
            self._answers.setdefault(number, _decode(answer.data, answer.headers))
            if len(self._answers) == len(self._expected):
                self._done.set()

    async def _end(self) -> None:
        self._done.set()
        self._closed.set()

    @property
    def _transport(self) -> asyncio.WriteTransport | None:
        # A private attribute: nats-py has no public way to cut a connection at once.
        writer: asyncio.StreamWriter | None = getattr(self._client._transport, "_io_writer", None)
        return None if writer is None else writer.transport

    def _why(self, error: Exception | None = None) -> str:
        cause = self._client.last_error or self._error or error
        return f"{self._address}: {'the connection was lost' if cause is None else plain(cause)}"


def plain(error: Exception) -> str:
    """The text of an error of nats-py, without the library's name."""
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
