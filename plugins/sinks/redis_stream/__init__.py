"""The `redis_stream` sink: adds each record as an entry to a Redis stream.

An entry has the fields `id`, `type` and `record`, the JSON object byte for byte. A batch is one transaction
(MULTI … EXEC), sent at once. So the stream has all its entries together and in order, or none of them.

The answer to a transaction may get lost. So the first write after an opening or a failure reads the newest entries of
the stream, and leaves out records that are among them. Only an existing entry makes the sink leave out a record. So a
deleted stream, or other writers to the stream, cost no record. Entry ids made from a record's time or position would
not work, because Redis wants each id to be greater than the last one in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkReject
from ingestd.api.events import Record
from ingestd.api.options import Options, Url, has_credentials, password_in_clear
from ingestd.api.sink import Sink

from ..columns import parts

if TYPE_CHECKING:
    from .client import StreamOnRedis

__all__ = ["RedisStreamSink", "register_sinks"]

_LARGEST = 512 << 20  # bytes of a value that Redis takes by default
_TRANSACTION = 16 << 20  # bytes: Redis keeps a transaction in memory, and disconnects a client that sends too large one
_LOOK_BACK, _LOOK_BACK_BYTES = 1000, 32 << 20  # or twice the batch if larger; Redis does nothing else while it reads


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("redis_stream", RedisStreamSink)


class RedisStreamOptions(Options):
    url: Url
    stream: Annotated[str, Meta(min_length=1)]
    """The key of the stream."""
    max_length: Annotated[int, Meta(ge=1)] | None = None
    """The approximate number of entries that stay, the newest ones. Without it, all stay."""


class RedisStreamSink(Sink):
    Options = RedisStreamOptions

    def __init__(self, name: str, options: RedisStreamOptions) -> None:
        super().__init__(name, options)
        from .client import StreamOnRedis  # here, because importing redis-py takes a tenth of a second

        try:
            self._stream: StreamOnRedis = StreamOnRedis(options.url, options.stream, max_length=options.max_length)
        except ValueError as error:
            raise ConfigError(f"sinks.{name}.url: {error}") from None
        self._largest = _LARGEST
        self._sure = False
        """Whether the stream is known to have the whole last write."""

    def risks(self) -> Sequence[str]:
        url = self.options.url
        if not url.startswith("redis:") or not has_credentials(url):
            return ()
        return password_in_clear(f"sinks.{self.name}.url", url, "use rediss://")

    async def open(self) -> None:
        self._sure = False
        await self._stream.check()
        self._largest = await self._stream.largest() or _LARGEST

    async def write(self, batch: Sequence[Record]) -> None:
        largest = self._largest
        too_large = {
            index: f"it has {len(record.body)} bytes, and this Redis takes {largest} (proto-max-bulk-len)"
            for index, record in enumerate(batch)
            if len(record.body) > largest
        }
        if too_large:
            raise SinkReject(too_large)
        records = [(record.decode()["id"], record) for record in batch]
        if not self._sure:
            there = await self._find(records)
            records = [each for number, each in enumerate(records) if number not in there]
        self._sure = False
        for part in parts(records, lambda each: len(each[1].body), _TRANSACTION):
            await self._stream.add(part)
        self._sure = True

    async def check(self) -> None:
        await self._stream.check()

    async def close(self) -> None:
        self._sure = False
        await self._stream.close()

    async def _find(self, records: Sequence[tuple[str, Record]]) -> set[int]:
        """The indexes of the records that are among the newest entries."""
        entries = max(_LOOK_BACK, 2 * len(records))
        size = max(_LOOK_BACK_BYTES, 2 * sum(len(record.body) for _, record in records))
        return await self._stream.find([identity for identity, _ in records], entries=entries, size=size)
