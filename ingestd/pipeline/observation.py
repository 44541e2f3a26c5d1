"""Somebody may look at the results of requests. Without such an observer they cost one comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ingestd.api.errors import Refused
from ingestd.api.events import Endpoint, Request, Session
from ingestd.api.intake import Intake

if TYPE_CHECKING:
    from .processor import Result
    from .request_events import RequestEvents

__all__ = ["Observation", "Observer"]


class Observer(Protocol):
    """Called in the event loop, after the answer. Raises nothing."""

    def see_results(
        self,
        request: Request,
        events: RequestEvents,
        results: Sequence[Result],
        answers: Sequence[Session | Refused],
        refusals: Sequence[int],
    ) -> None:
        """The events of a request have ended. `refusals` has the indexes of those that are refused."""

    def see_refusal(
        self,
        endpoint: Endpoint,
        request_id: str,
        at: int,
        refused: Refused,
        *,
        several: bool,
        intake: Intake | None,
        events: int = 1,
    ) -> None:
        """A whole request is refused. `at` is the time of receipt, in milliseconds. `several`: it may have several
        events. `events` is their number as far as known.
        """


class Observation:
    """Holds the observer of all requests, or None while nobody looks."""

    def __init__(self) -> None:
        self.observer: Observer | None = None
