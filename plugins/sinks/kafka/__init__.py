"""The `kafka` sink: sends each record to a topic of Apache Kafka.

A message is the JSON object byte for byte. Its key is tenant and visitor, so the messages of a visitor are in one
partition and in order. A write returns when all replicas in sync have its messages.

confluent-kafka sends on separate threads. The sink calls it from one thread, because its calls block.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import takewhile
from threading import Event
from typing import TYPE_CHECKING, Any

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import has_credentials, password_in_clear
from ingestd.api.sink import Sink

from .. import not_installed
from .messages import Message, MessageMaker, Subject, TopicTemplate, Unregistered
from .producer import Producer, TooLarge, Unacknowledged
from .settings import KafkaOptions, check_options
from .topics import Topics

if TYPE_CHECKING:
    from .registry import Registry

__all__ = ["KafkaSink", "register_sinks"]

_SIFTING = 5.0  # seconds after which a write rejects the records found so far; the others come again


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("kafka", KafkaSink)


class KafkaSink(Sink):
    Options = KafkaOptions

    def __init__(self, name: str, options: KafkaOptions) -> None:
        super().__init__(name, options)
        try:
            import confluent_kafka  # noqa: F401 - slow to import, so only daemons with this sink do it
        except ImportError:
            raise not_installed(name, "confluent-kafka", "kafka") from None
        check_options(f"sinks.{name}", options)
        try:
            template = TopicTemplate(options.topic)
        except ValueError as error:
            raise ConfigError(f"sinks.{name}.topic: {error}") from None
        self._registry: Registry | None = None
        if options.schema_registry is not None:
            from .registry import Registry  # here, because most commands do not need Tornado's client

            self._registry = Registry(options, f"sinks.{name}")
        self.needs_schemas = self._registry is not None
        self._make = MessageMaker(template, self._registry).make
        self._static = [] if template.name is None else [template.name]
        """The topic, if it is the same for all records."""
        self._topics = Topics(options)
        self._producer = Producer(options)
        self._thread: ThreadPoolExecutor | None = None

    def risks(self) -> Sequence[str]:
        options = self.options
        found: list[str] = []
        if options.user is not None and not (options.tls or options.ca_file or options.certificate):
            brokers = f"kafka://{','.join(options.brokers)}"
            found += password_in_clear(f"sinks.{self.name}.password", brokers, f"set sinks.{self.name}.tls = true")
        registry = options.schema_registry
        if registry is not None and registry.startswith("http:") and has_credentials(registry):
            found += password_in_clear(f"sinks.{self.name}.schema_registry", registry, "use https")
        return found

    async def open(self) -> None:
        if self._registry is not None:
            self._registry.schemas = self.schemas
        await self.close()
        await self._run(self._open)

    async def write(self, batch: Sequence[Record]) -> None:
        try:
            await self._send(batch)
        except Unregistered as error:
            assert self._registry is not None
            await self._registry.register(error.subjects)
            await self._send(batch)

    async def check(self) -> None:
        stop = Event()
        try:
            # On another thread, because a write may be waiting. The check has its own connection.
            await asyncio.to_thread(self._topics.check, self._static, stop)
        finally:
            stop.set()
        if self._registry is not None:
            await self._registry.check()

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            ended = asyncio.get_running_loop().run_in_executor(thread, self._producer.end)
            thread.shutdown(wait=False)
            await asyncio.shield(ended)  # the producer ends also if nobody waits for it

    async def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do blocking work on the thread of the sink. After a cancellation it stops soon, and later work waits."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"ingestd-{self.name}")
        stop = Event()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *arguments, stop))
        finally:
            stop.set()

    async def _send(self, batch: Sequence[Record]) -> None:
        settled: list[Message] = []
        try:
            await self._run(self._write, batch, settled)
        except Exception:  # not after a cancellation: the records come again, also if the brokers have them by now
            self._producer.forget(settled)
            raise
        self._producer.forget(settled)

    def _open(self, stop: Event) -> None:
        self._topics.forget()
        self._producer.connect()  # first, because it takes half a second until it can send
        self._topics.reach(self._static, stop)

    def _write(self, batch: Sequence[Record], settled: list[Message], stop: Event) -> None:
        """`settled` gets the messages that do not come again."""
        messages = self._messages(batch)
        topics = {message.topic for message in messages}
        try:
            self._topics.ensure(topics, stop)
            try:
                self._producer.send(messages, stop)
            except TooLarge:
                self._sift(messages, settled, stop)
        except Unacknowledged as error:
            self._topics.forget()
            reason = self._topics.shortage(topics, stop) or error.reason or "they are slow, or a quota is exceeded"
            settled += self._written(messages)
            raise SinkRetry(
                f"the brokers do not acknowledge messages in time: {reason}", written=len(settled)
            ) from None
        except (SinkRetry, SinkFailure) as error:
            self._topics.forget()
            settled += self._written(messages)
            error.written = len(settled)
            raise
        settled += messages

    def _messages(self, batch: Sequence[Record]) -> list[Message]:
        messages: list[Message] = []
        rejected: dict[int, str] = {}
        unregistered: set[Subject] = set()
        for index, record in enumerate(batch):
            try:
                messages.append(self._make(record))
            except Unregistered as error:
                unregistered.update(error.subjects)
            except ValueError as error:
                rejected[index] = str(error)
        if unregistered:
            raise Unregistered(unregistered)
        if rejected:
            raise SinkReject(rejected)
        return messages

    def _written(self, messages: Sequence[Message]) -> list[Message]:
        """The first messages, which the brokers have."""
        return [*takewhile(self._producer.has, messages)]

    def _sift(self, messages: Sequence[Message], settled: list[Message], stop: Event) -> None:
        """Send the messages one by one, to find those that are too large."""
        until = time.monotonic() + _SIFTING
        rejected: dict[int, str] = {}
        written = 0
        try:
            with closing(self._producer.send_alone(messages, stop)) as answers:
                for written, fits in enumerate(answers, 1):
                    if not fits:
                        rejected[written - 1] = _too_large(messages[written - 1])
                    if rejected and time.monotonic() > until:
                        break
        except (Unacknowledged, SinkRetry, SinkFailure):
            if not rejected:
                raise
        if rejected:
            settled += messages[:written]
            raise SinkReject(rejected, written=written)
        self._producer.shrink()


def _too_large(message: Message) -> str:
    return f"it has {len(message.body)} bytes, and the topic {message.topic} takes fewer (max.message.bytes)"
