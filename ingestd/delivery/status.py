"""The status of a sink in a running daemon, for metrics and the operators' page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingestd.consumers.partitions import PartitionConsumers
from ingestd.consumers.status import ConsumerStatus, ConsumerTotals

from .sink_consumer import SinkConsumer

__all__ = ["SinkStatus", "feeders_of", "sink_statuses"]


class SinkStatus(ConsumerTotals):
    """The status of a sink over all partitions, always up to date. Counts begin with the start of the daemon."""

    def __init__(self, parts: Sequence[ConsumerStatus], feeders: Sequence[SinkConsumer]) -> None:
        """`feeders` has the consumers of the sink, one for each partition."""
        super().__init__(parts)
        self.feeders = feeders
        self.sink_name = feeders[0].sink.name

    @property
    def delivered(self) -> int:
        """The number of records that the sink has durably taken."""
        return sum(each.delivered for each in self.feeders)

    @property
    def filtered(self) -> int:
        return sum(each.filtered for each in self.feeders)

    @property
    def given_up(self) -> int:
        return sum(each.given_up for each in self.feeders)

    @property
    def retries(self) -> int:
        return self.failures + sum(each.splits for each in self.feeders)

    @property
    def dead_letters(self) -> int:
        """The number of dead letters, without those in partitions where another daemon has the sink's cursor."""
        found = [each.progress for each in self.feeders]  # one read, because other threads call this
        return sum(progress.dead for progress in found if progress is not None)

    @property
    def dead_letter_bytes(self) -> int:
        """What these dead letters have of their records, in bytes."""
        return sum(each.letter_bytes for each in self.feeders if each.progress is not None)

    @property
    def last_dead_letter_reason(self) -> str | None:
        """The reason of the newest dead letter. None if the letter is gone, or another daemon has the sink's cursor.

        With several partitions, it is the reason of the newest letter of one of them.
        """
        return next((reason for each in self.feeders if (reason := each.last_reason) is not None), None)


def sink_statuses(consumers: PartitionConsumers, sinks: Iterable[SinkConsumer]) -> list[SinkStatus]:
    """The status of each sink."""
    parts = {status.name: status.parts for status in consumers.statuses}
    return [SinkStatus(parts[sink.name], feeders_of(consumers, sink)) for sink in sinks]


def feeders_of(consumers: PartitionConsumers, sink: SinkConsumer) -> list[SinkConsumer]:
    """The consumers of a sink, one for each partition."""
    return [each for each in consumers.of(sink.name) if isinstance(each, SinkConsumer)]
