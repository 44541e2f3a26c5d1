"""The status of a sink, for metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingestd.consumers.group import Consumers, ConsumerStatus

from .sink_consumer import SinkConsumer

__all__ = ["SinkStatus", "sink_statuses"]


@dataclass(frozen=True)
class SinkStatus:
    """The status of a sink, always up to date. Counts begin with the start of the daemon."""

    consumer: ConsumerStatus
    feeder: SinkConsumer

    @property
    def sink_name(self) -> str:
        return self.feeder.sink.name

    @property
    def delivered(self) -> int:
        """The number of records that the sink has durably taken."""
        return self.feeder.delivered

    @property
    def filtered(self) -> int:
        return self.feeder.filtered

    @property
    def given_up(self) -> int:
        return self.feeder.given_up

    @property
    def retries(self) -> int:
        return self.consumer.failures + self.feeder.splits

    @property
    def pending(self) -> int:
        return self.consumer.pending

    @property
    def oldest_pending_seconds(self) -> float:
        return self.consumer.oldest_pending_seconds

    @property
    def dead_letters(self) -> int:
        """The number of dead letters, or 0 while another daemon has the sink's cursor."""
        progress = self.feeder.progress
        return 0 if progress is None else progress.dead

    @property
    def last_dead_letter_reason(self) -> str | None:
        """The reason of the newest dead letter. None if the letter is gone, or another daemon has the sink's cursor."""
        return self.feeder.last_reason

    @property
    def paused(self) -> bool:
        return self.consumer.paused


def sink_statuses(consumers: Consumers, sinks: Iterable[SinkConsumer]) -> list[SinkStatus]:
    """The status of each sink."""
    statuses = {status.name: status for status in consumers.statuses}
    return [SinkStatus(statuses[sink.name], sink) for sink in sinks]
