"""Feeds a sink from the journal: a consumer like any other, so what it delivers, it delivers at least once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from .config import Config
from .consumer import Consumer, Step
from .consumers import Consumers, ConsumerStatus
from .errors import ConfigError, SinkReject, SinkRetry
from .events import Record
from .options import Duration, Options, PositiveDuration
from .sink import Sink

__all__ = ["SinkConsumer", "SinkOptions", "SinkStatus", "make_sink_consumer", "read_sink_options", "sink_statuses"]

_PREFIX = "sink:"


class SinkOptions(Options, kw_only=True):
    """The options every sink has, beside its own."""

    type: str
    start: Literal["now", "beginning"] = "now"
    timeout: PositiveDuration = Duration.parse("30s")


class SinkConsumer(Consumer):
    """The consumer of one sink. Its name is `sink:NAME`.

    A write that fails, that takes longer than the option `timeout`, or that rejects records is made
    again, without end, with the records it had and then some pause; the place in the journal waits.
    """

    max_records = 500
    linger = 0.2

    def __init__(self, sink: Sink, options: SinkOptions) -> None:
        self.name = _PREFIX + sink.name
        self.start = options.start
        self.sink = sink
        self._timeout = float(options.timeout)

    async def open(self) -> None:
        await self._within(self.sink.open(), "opening it")

    async def process(self, records: Sequence[Record], step: Step) -> None:
        try:
            await self._within(self.sink.write(records), "a write")
        except SinkReject as error:
            raise SinkRetry(_describe(error, records)) from error

    async def check(self) -> None:
        await self._within(self.sink.check(), "a check")

    async def close(self) -> None:
        await self.sink.close()

    async def _within(self, work: Awaitable[None], what: str) -> None:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                await work
        except TimeoutError as error:
            if not limit.expired():  # a TimeoutError of the sink's own
                raise
            raise SinkRetry(f"{what} took longer than {self._timeout:g} s") from error


def _describe(error: SinkReject, records: Sequence[Record]) -> str:
    index, reason = min(error.reasons.items())
    return (
        f"rejects {len(error.reasons)} of {len(records)} records, first {records[index].decode().get('id')}: {reason}"
    )


def make_sink_consumer(name: str, table: Mapping[str, Any], sink_class: type[Sink], config: Config) -> SinkConsumer:
    """The sink of `[sinks.NAME]` and its consumer. Raises `ConfigError` with file and option."""
    options, own_options = read_sink_options(name, table, sink_class, config)
    path = f"sinks.{name}"
    try:
        sink = sink_class(name, own_options)
    except ConfigError as error:
        raise ConfigError(f"{config.source}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{config.place(path)}: the sink cannot be set up: {error!r}") from error
    return SinkConsumer(sink, options)


def read_sink_options(
    name: str, table: Mapping[str, Any], sink_class: type[Sink], config: Config
) -> tuple[SinkOptions, Options]:
    """The options every sink has and those of its kind. Raises `ConfigError` with file and option."""
    path = f"sinks.{name}"
    common = {field.name for field in msgspec.structs.fields(SinkOptions)}
    own = {field.name for field in msgspec.structs.fields(sink_class.Options)}
    if common & own:
        clash = ", ".join(sorted(common & own))
        raise ConfigError(f"{config.place(path)}: {sink_class.__name__} defines {clash}, which every sink has")
    # Both sets at once, so that a misspelt name is told the nearest of all.
    both: Any = msgspec.defstruct("SinkOptions", [(each, Any, None) for each in (*common, *own)], bases=(Options,))
    config.read(both, table, path)

    def part(type_: type[Options], known: set[str]) -> Any:
        chosen = {each: value for each, value in table.items() if each in known}
        return config.read(type_, chosen, path)

    return part(SinkOptions, common), part(sink_class.Options, own)


@dataclass(frozen=True)
class SinkStatus:
    """What metrics show of one sink; always up to date."""

    sink_name: str
    consumer: ConsumerStatus

    @property
    def delivered(self) -> int:
        """Records the sink has taken and that will not be written again, since the start of the daemon."""
        return self.consumer.processed

    @property
    def retries(self) -> int:
        return self.consumer.failures

    @property
    def pending(self) -> int:
        return self.consumer.pending

    @property
    def oldest_pending_seconds(self) -> float:
        return self.consumer.oldest_pending_seconds

    @property
    def dead_letters(self) -> int:
        """Records given up: none, since what a sink rejects is written again without end."""
        return 0


def sink_statuses(consumers: Consumers) -> Iterable[SinkStatus]:
    """The status of each sink among the consumers."""
    return [
        SinkStatus(status.name.removeprefix(_PREFIX), status)
        for status in consumers.statuses
        if status.name.startswith(_PREFIX)
    ]
