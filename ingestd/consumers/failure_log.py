"""The log lines about the failures of a consumer: few of them, whatever the number of failures and of partitions."""

from __future__ import annotations

import logging

from ingestd.api.errors import IngestdError, reason_of
from ingestd.support.message_kinds import message_kind

__all__ = ["FailureLog", "FailureLogs"]

_log = logging.getLogger("ingestd.consumers")


class FailureLog:
    """Says that a consumer fails, and that it works again. All partitions of the consumer share it.

    One cause makes all of them fail at once, mostly. It gets one line, not a line for each partition.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._kinds: dict[object, str] = {}
        """The kind of the last reason of all that fail now. A reason itself may contain a new id each time."""
        self._most = 0
        """The most failures in a row, since the consumer began to fail."""

    def failed(self, who: object, place: str, error: BaseException, failures: int) -> None:
        """Note a failure. `who` has failed so often in a row; an object that stands for the attempts of a partition.

        `place` describes the partition; it is empty if there is only one.
        """
        kind, before = message_kind(reason_of(error)), self._kinds.pop(who, None)
        is_rare = failures > self._most and failures & (failures - 1) == 0  # the 1st, 2nd, 4th, 8th …
        if is_rare or (kind != before and kind not in self._kinds.values()):
            expected = isinstance(error, IngestdError | OSError)
            _log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s%s: %s; it is tried again (failure %d in a row)",
                self._name,
                f" in {place}" if place else "",
                reason_of(error),
                failures,
                exc_info=None if expected else error,
            )
        self._kinds[who] = kind
        self._most = max(self._most, failures)

    def succeeded(self, who: object) -> None:
        """Note that who has failed works again."""
        self._kinds.pop(who, None)
        if not self._kinds:
            _log.info("%s: works again after %d failures", self._name, self._most)
            self._most = 0

    def ended(self, who: object) -> None:
        """Note that there will be no further attempts for now, so that nobody waits for their success."""
        self._kinds.pop(who, None)


class FailureLogs(dict[str, FailureLog]):
    """The failure logs of consumers by name. A missing one is made when it is asked for."""

    def __missing__(self, name: str) -> FailureLog:
        return self.setdefault(name, FailureLog(name))
