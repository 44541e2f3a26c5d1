"""What metrics show of a sink."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingestd.consumers.group import Consumers, ConsumerStatus

from .sink_consumer import SinkConsumer

__all__ = ["SinkStatus", "sink_statuses"]


@dataclass(frozen=True)
class SinkStatus:
    """Always up to date. Counts are since the start of the daemon."""

    consumer: ConsumerStatus
    feeder: SinkConsumer

    @property
    def sink_name(self) -> str:
        return self.feeder.sink.name

    @property
    def delivered(self) -> int:
        """Records the sink has taken and that will not be written again."""
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
        """Records given up and kept; 0 while another daemon goes on with the sink."""
        progress = self.feeder.progress
        return 0 if progress is None else progress.dead

    @property
    def last_dead_letter_reason(self) -> str | None:
        """Of the newest dead letter; None if that one is not kept any more, or another daemon goes on with the sink."""
        return self.feeder.last_reason

    @property
    def paused(self) -> bool:
        return self.consumer.paused


def sink_statuses(consumers: Consumers, sinks: Iterable[SinkConsumer]) -> list[SinkStatus]:
    """The status of each of the sinks."""
    statuses = {status.name: status for status in consumers.statuses}
    return [SinkStatus(statuses[sink.name], sink) for sink in sinks]
