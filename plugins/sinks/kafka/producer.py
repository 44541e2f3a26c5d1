"""Sends records to the brokers, and remembers which of them the brokers have."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import Any

import msgspec

from ingestd.api.errors import SinkRetry

from .errors import ALL_BROKERS_DOWN, CONSEQUENCES, TOO_LARGE, failure, plain
from .messages import Message
from .settings import KafkaOptions, lone_settings, producer_settings

__all__ = ["Producer", "TooLarge", "Unacknowledged"]

# Seconds without any acknowledgement, and in all for messages that are sent together, after which a write fails.
_QUIET, _LONGEST = 5.0, 15.0
_LOOK = 0.05  # seconds after which a wait notices that it is to stop
_LAST_ANSWERS = 10.0  # seconds for acknowledgements that are on their way when the producer ends after an error
_BATCH_SIZE, _SMALLEST_BATCH = 1_000_000, 16_384  # bytes: less than the default limit of topics and brokers
_LARGE = 65_536  # bytes of a message from which it is on its way alone


class TooLarge(Exception):
    """The broker does not take a message, or several that were sent together, because of their size."""


class Unacknowledged(Exception):
    """The brokers have not acknowledged all messages in time. The producer still sends them."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(reason)
        self.reason = reason


_WAITING: Any = object()


class _Receipt(msgspec.Struct, gc=False):
    """The answer to a message."""

    error: Any = _WAITING
    """None if the brokers have the message."""

    def take(self, error: Any, _: Any) -> None:
        self.error = error


class Producer:
    """An idempotent producer. Its calls come one after the other and block, but not longer than until `stop`.

    Messages stay with the producer if a write fails because the brokers do not answer. The next write of these records
    waits for the same messages, so they are neither repeated nor reordered. After an error the producer ends, because
    the messages behind the failed one must not be sent before it. Then the next write sends all messages again that no
    broker has acknowledged.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._batch_size = _BATCH_SIZE
        self._client: Any = None
        self._ends_at: float | None = None
        """When a client is closed that takes its last answers only. None if it takes messages."""
        self._receipts: dict[tuple[str, int], _Receipt] = {}
        """The receipts of messages by identity, until `forget`."""
        self._connection_error: Any = None
        """The first error of the connections since the last acknowledgement."""

    def connect(self) -> None:
        """Connect, without waiting for it."""
        if self._client is None:
            self._make_client(producer_settings(self._options, self._batch_size))

    def _make_client(self, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer as Client

        self._connection_error = None
        self._client = Client({**settings, "error_cb": self._note_error})

    def end(self) -> None:
        """Close the connections. Messages that no broker has acknowledged may arrive nevertheless."""
        self._close()
        self._receipts.clear()

    def has(self, message: Message) -> bool:
        """Whether the brokers have acknowledged a message that was not forgotten."""
        receipt = self._receipts.get(message.identity)
        return receipt is not None and receipt.error is None

    def forget(self, messages: Iterable[Message]) -> None:
        """Send these messages anew if they come again. They must be acknowledged."""
        for message in messages:
            self._receipts.pop(message.identity, None)

    def send(self, messages: Sequence[Message], stop: Event) -> None:
        """Return when the brokers have all messages.

        Raises `Unacknowledged`, `TooLarge`, `SinkRetry` or `SinkFailure`.
        """
        from confluent_kafka import KafkaException

        if self._ends_at is not None:
            self._end_client(stop)  # its errors come again with the messages
        self.connect()
        try:
            for together in _sent_together(messages):
                receipts = [self._receipts.get(message.identity) or self._produce(message) for message in together]
                self._wait(receipts, stop)
                if any(receipt.error is not None for receipt in receipts):
                    raise self._give_up(None, stop)
        except KafkaException as error:
            raise self._give_up(error.args[0], stop) from None

    def send_alone(self, messages: Sequence[Message], stop: Event) -> Generator[bool, None, None]:
        """Send one message after the other, and yield for each whether the broker takes a message of its size.

        Nothing else is on its way, so order needs no idempotent producer, which would end with each refused message.
        """
        from confluent_kafka import KafkaException

        self._make_client(lone_settings(self._options))
        try:
            for message in messages:
                try:
                    receipt = self._receipts.get(message.identity) or self._produce(message)
                    self._wait([receipt], stop)
                except KafkaException as error:
                    raise self._give_up(error.args[0], stop) from None
                if receipt.error is None:
                    yield True
                elif receipt.error.code() == TOO_LARGE:
                    self.forget([message])
                    yield False
                else:
                    raise self._give_up(None, stop)
        finally:
            self._leave_client()

    def shrink(self) -> None:
        """Send fewer records at once, because the topic's limit for several is lower than for one alone."""
        self._batch_size = max(_SMALLEST_BATCH, self._batch_size // 2)

    def _produce(self, message: Message) -> _Receipt:
        receipt = _Receipt()
        while message.identity not in self._receipts:
            try:
                self._client.produce(
                    message.topic,
                    message.body,
                    message.key,
                    on_delivery=receipt.take,
                    timestamp=message.at,
                    headers=message.headers,
                )
                self._receipts[message.identity] = receipt
            except BufferError:  # librdkafka has a gigabyte of messages
                self._client.poll(_LOOK)
        return receipt

    def _wait(self, receipts: Sequence[_Receipt], stop: Event) -> None:
        """Wait until every message has an answer."""
        began = heard = time.monotonic()
        for receipt in receipts:
            while receipt.error is _WAITING:
                self._client.poll(_LOOK)
                now = time.monotonic()
                if receipt.error is not _WAITING:
                    heard, self._connection_error = now, None
                elif stop.is_set() or now - heard > _QUIET or now - began > _LONGEST:
                    raise Unacknowledged(None if self._connection_error is None else plain(self._connection_error))

    def _give_up(self, fatal: Any, stop: Event) -> Exception:
        """End the client after an error. Returns the exception to raise."""
        errors = self._end_client(stop)
        causes = [error for error in errors if error.code() not in CONSEQUENCES]
        if any(error.code() == TOO_LARGE for error in causes):
            return TooLarge()
        if causes:
            return failure(causes[0])
        return SinkRetry(plain(fatal or errors[0]))

    def _end_client(self, stop: Event) -> list[Any]:
        """Take the answers that are on their way, and close the client. Returns the errors of its messages.

        A message is sent again if its acknowledgement is not among them. So the next write goes on with this if the
        present one is stopped.
        """
        if self._ends_at is None:
            self._ends_at = time.monotonic() + _LAST_ANSWERS
        while len(self._client) > 0:
            # Again each time: a message behind the failed one is refused, and queues for another attempt.
            self._client.purge(in_flight=False, blocking=False)
            _poll(self._client, _LOOK)
            if time.monotonic() > self._ends_at:
                break
            if stop.is_set():
                raise SinkRetry("it was stopped")
        return self._close()

    def _leave_client(self) -> None:
        """Close the client. If an answer is on its way, the next write does so, which takes the answer first."""
        if self._client is None or len(self._client) == 0:
            self._close()
        elif self._ends_at is None:
            self._ends_at = time.monotonic() + _LAST_ANSWERS

    def _close(self) -> list[Any]:
        """End the client, and return the errors of its messages.

        Receipts of acknowledged messages stay. The others go, so their messages are sent again.
        """
        client, self._client, self._ends_at = self._client, None, None
        if client is not None:
            client.purge(blocking=False)
            _poll(client, 0)
        answered = {each: receipt for each, receipt in self._receipts.items() if receipt.error is not _WAITING}
        self._receipts = {each: receipt for each, receipt in answered.items() if receipt.error is None}
        return [receipt.error for receipt in answered.values() if receipt.error is not None]

    def _note_error(self, error: Any) -> None:
        if self._connection_error is None or self._connection_error.code() == ALL_BROKERS_DOWN:
            self._connection_error = error


def _sent_together(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """The messages that are on their way at once: many small ones, or a large one alone.

    A large one is sent in several steps. If a broker refuses another message meanwhile, librdkafka ends the connection,
    and with it the answers to all messages.
    """
    small: list[Message] = []
    for message in messages:
        if len(message.body) < _LARGE:
            small.append(message)
        else:
            yield small
            yield [message]
            small = []
    yield small


def _poll(client: Any, seconds: float) -> None:
    """Take answers after an error, which the client may raise again."""
    from confluent_kafka import KafkaException

    with suppress(KafkaException):
        client.poll(seconds)
