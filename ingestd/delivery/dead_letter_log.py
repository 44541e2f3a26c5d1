"""Logs new dead letters. A sink that rejects everything must not fill the disk with log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ingestd.support.message_kinds import message_kind

from .dead_letters import DeadLetter

__all__ = ["DeadLetterLog"]

_log = logging.getLogger("ingestd.delivery")

_QUIET = 600.0  # seconds without a dead letter after which the next one is news again
_PAUSE = 10.0  # seconds between two lines with different reasons


class DeadLetterLog:
    """Logs the dead letters of one sink: the 1st, 2nd, 4th, 8th … letter, and any with a new reason.

    The failures of a sink are logged in the same way. Reasons that differ only in ids or numbers are the same reason.
    Tests replace `clock`, which counts seconds.
    """

    def __init__(self, sink: str, clock: Callable[[], float] = time.monotonic, *, partition: str = "") -> None:
        self._sink = sink
        self._partition = partition
        self._clock = clock
        self._count = 0
        self._reason = ""
        self._last_letter_at = self._last_line_at = float("-inf")

    def report(self, letters: Sequence[DeadLetter], kept: int) -> None:
        """Log new letters once they are durable. `kept` is the present number of dead letters."""
        if not letters:
            return
        now = self._clock()
        if now - self._last_letter_at >= _QUIET:
            self._count, self._reason = 0, ""
        before, self._count, self._last_letter_at = self._count, self._count + len(letters), now
        reason = message_kind(letters[-1].reason)
        is_rare = before.bit_length() != self._count.bit_length()
        is_new = reason != self._reason and now - self._last_line_at >= _PAUSE
        if not is_rare and not is_new:
            return
        self._reason, self._last_line_at = reason, now
        # The reason comes last, because it may be long and the operators' page cuts long lines.
        _log.warning(
            "sink:%s: %s; %d kept, shown by: ingestd sinks dead-letters list %s; the last one's reason: %s",
            self._sink, _described(letters, self._partition), kept, self._sink, letters[-1].reason,
            extra={"ingestd_fields": _about(letters[-1])},
        )  # fmt: skip


def _described(letters: Sequence[DeadLetter], partition: str) -> str:
    number = letters[-1].number
    last = f"{partition}:{number}" if partition else str(number)
    if len(letters) == 1:
        return f"a record has become dead letter {last}"
    return f"{len(letters)} records have become dead letters, the last is number {last}"


def _about(letter: DeadLetter) -> dict[str, str]:
    """The id of the record, by which operators find it in the journal. The record of a plugin may have no id."""
    record_id = letter.to_record().decode().get("id")
    return {"record_id": record_id} if isinstance(record_id, str) else {}
