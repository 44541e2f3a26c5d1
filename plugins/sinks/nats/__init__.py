"""The `nats` sink: publishes each record to a JetStream stream.

A message is the JSON object byte for byte. Its header `Nats-Msg-Id` is the record's id, so the stream stores a record
once, however often it comes within the duplicate window. Records are published together, in order. A write returns when
the stream has acknowledged each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkReject
from ingestd.api.events import Record
from ingestd.api.options import Options, Url, has_credentials, password_in_clear
from ingestd.api.sink import Sink

from ..columns import parts
from .client import Connection, Message
from .servers import Servers
from .stream import Stream, Subject

__all__ = ["NatsOptions", "NatsSink", "register_sinks"]

_IN_FLIGHT = 16 << 20  # bytes published before they are acknowledged: the server must hold them


class NatsOptions(Options):
    stream: Annotated[str, Meta(pattern=r"^[^\s.*>/\\\x00-\x1f\x7f]+$")]
    url: Url | None = None
    """`nats://host:4222`, or `tls://…` to require TLS. It may have `user:password@` or `:token@`."""
    servers: tuple[Url, ...] = ()
    """Several URLs instead of `url`: the servers of a cluster, tried in turn."""
    subject: str = "ingestd.{type}"
    """May contain {type}, {tenant} and {key}, the event key."""
    create: bool = True
    """Whether the sink creates a missing stream. It never changes an existing one."""
    credentials: Path | None = None
    """A file with a JWT and its seed, as made by `nsc`."""
    ca_file: Path | None = None
    """Certificates to trust instead of the system's. The connection must then use TLS."""
    former: ClassVar[Mapping[str, str]] = {
        "duplicate_window": "a new stream remembers ids for two minutes, and `nats stream edit` changes that"
    }


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("nats", NatsSink)


class NatsSink(Sink):
    Options = NatsOptions

    def __init__(self, name: str, options: NatsOptions) -> None:
        super().__init__(name, options)
        try:
            self._subject = Subject(options.subject)
        except ValueError as error:
            raise ConfigError(f"sinks.{name}.subject: {error}") from None
        self._stream = Stream(options, self._subject)
        self._servers = Servers(name, options)
        self._connection: Connection | None = None

    def risks(self) -> Sequence[str]:
        options = self.options
        urls = [(f"sinks.{self.name}.url", options.url)] if options.url else []
        urls += [(f"sinks.{self.name}.servers[{index}]", url) for index, url in enumerate(options.servers)]
        return [
            risk
            for option, url in urls
            if url.startswith("nats:") and has_credentials(url) and options.ca_file is None
            for risk in password_in_clear(option, url, "use tls://")
        ]

    async def open(self) -> None:
        await self.close()
        connection = await self._servers.connect()
        try:
            await self._stream.ensure(connection)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection

    async def write(self, batch: Sequence[Record]) -> None:
        if self._connection is None or self._connection.is_lost:
            await self.open()
        connection = self._connection
        assert connection is not None
        messages = [self._message(record) for record in batch]
        most = connection.max_payload
        refused = {
            index: f"it has {message.size} bytes with its headers, and the server takes {most} (max_payload)"
            for index, message in enumerate(messages)
            if message.size > most
        }
        if refused:
            raise SinkReject(refused)
        try:
            index = 0
            for part in parts(messages, lambda message: message.size, _IN_FLIGHT):
                for answer in await connection.ask(part):
                    reason = self._stream.refusal(answer, messages[index].subject)
                    if reason is not None:
                        refused[index] = reason
                    index += 1
        except BaseException:
            await self.close()  # other messages may still be stored; their ids prevent duplicates
            raise
        if refused:
            raise SinkReject(refused)

    async def check(self) -> None:
        connection = await self._servers.connect()
        try:
            await self._stream.check(connection)
        finally:
            await connection.close()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _message(self, record: Record) -> Message:
        value = record.decode()
        headers = {"Nats-Msg-Id": value["id"], "Nats-Expected-Stream": self.options.stream}
        return Message(self._subject.of(value), record.body, headers)
