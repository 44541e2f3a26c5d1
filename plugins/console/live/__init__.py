"""Live events for the operators' page: the events as they come, sampled and bounded, while somebody looks.

Viewers with the same filter share a stream. A stream stays for some seconds without a viewer, so that a browser that
connects again continues where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ingestd.api.backend import Partition
from ingestd.api.errors import Refused, Unavailable
from ingestd.api.events import Request, Session
from ingestd.pipeline.outcomes import Outcomes
from ingestd.pipeline.processor import Result
from ingestd.pipeline.request_events import RequestEvents, Sent
from ingestd.pipeline.resolver import Resolved
from ingestd.support.periodic import TIMING

from ..disclosure import Disclosure
from .arrivals import LONGEST_ID, Arrival, ArrivalFilter, Source
from .earlier import earlier_rows
from .rows import row_of
from .stream import Stream, StreamEntry
from .viewer import Viewer

__all__ = ["LONGEST_ID", "Arrival", "ArrivalFilter", "LiveEvents", "Source", "Viewer"]

MOST_VIEWERS = 8
_UNKNOWN = Sent()


class LiveEvents:
    """Runs in the event loop. It is the observer of `outcomes` while there is a stream."""

    def __init__(self, disclosure: Disclosure, outcomes: Outcomes, partitions: Sequence[Partition] = ()) -> None:
        self.disclosure = disclosure
        self._outcomes = outcomes
        self._partitions = partitions
        self._streams: dict[ArrivalFilter, Stream] = {}
        self._viewers: dict[Viewer, Stream] = {}
        self._closed = False

    def apply_disclosure(self, disclosure: Disclosure) -> None:
        """Show what this allows. If that is something else, all viewers have to come again."""
        if disclosure != self.disclosure:
            self.disclosure = disclosure
            self.forget()

    def close(self) -> None:
        """End all streams at once. There are no more viewers then."""
        self._closed = True
        self.forget()

    def forget(self) -> None:
        """Drop all events. Viewers come again, and their pages drop theirs."""
        self._streams = {}
        self._outcomes.observer = None
        for viewer in self._viewers:
            viewer.end()

    def see_results(
        self,
        events: RequestEvents,
        results: Sequence[Result],
        answers: Sequence[Session | Refused],
        refusals: Sequence[int],
    ) -> None:
        several = events.request.batch or len(results) > 1
        source = _source(events.request, several=several)

        def arrival_of(index: int) -> Arrival:
            record, refused, result, answer = None, None, results[index], answers[index]
            if isinstance(answer, Refused):
                outcome, refused = answer.outcome, answer
            else:
                assert isinstance(result, Resolved)
                outcome = result.outcome
                record = result.record.body if result.record is not None else None
            number, endpoint, key = index if several else None, events.endpoints[index], events.keys[index]
            sent = events.sent.get(index, _UNKNOWN)
            return Arrival(source, number, endpoint, key, outcome, record, refused, sent)

        for stream in self._streams.values():
            stream.offer_all(len(answers), refusals, arrival_of)

    def see_refusal(self, request: Request, refused: Refused) -> None:
        source = _source(request, several=request.batch or request.events > 1)
        self.offer(Arrival(source, None, request.endpoint, "", refused.outcome, refused=refused, events=request.events))

    def offer(self, arrival: Arrival) -> None:
        """Show an event to the viewers that want it."""
        for stream in self._streams.values():
            stream.offer(arrival)

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def check_room(self) -> None:
        """Raises `Unavailable` if there can be no further viewer."""
        if self._closed:
            raise Unavailable("The daemon is shutting down.")
        if len(self._viewers) >= MOST_VIEWERS:
            raise Unavailable(f"{MOST_VIEWERS} pages show live events already.", retry_after=10)

    async def earlier(self, wanted: ArrivalFilter, before: int) -> bytes:
        """The message with the last events of the journal before a time in milliseconds."""
        return await earlier_rows(self._partitions, wanted, self.disclosure, before)

    @contextmanager
    def view(self, wanted: ArrivalFilter, last_id: str = "") -> Iterator[Viewer]:
        """A viewer, which continues behind the row with the id, if that is possible. Raises `Unavailable`."""
        self.check_room()
        stream = self._streams.get(wanted) or self._begin(wanted)
        viewer = Viewer(stream, self.disclosure, last_id)
        self._viewers[viewer] = stream
        try:
            yield viewer
        finally:
            del self._viewers[viewer]
            stream.left += 1
            asyncio.get_running_loop().call_later(TIMING.viewer_lingers, self._drop_unused, wanted, stream, stream.left)

    def _begin(self, wanted: ArrivalFilter) -> Stream:
        now = asyncio.get_running_loop().time()
        earlier: Iterator[StreamEntry] = iter(())
        everything = self._streams.get(ArrivalFilter())
        if everything is not None:
            everything.take_sample(now)
            earlier = everything.entries()
        stream = Stream(wanted, self._row_of, now, earlier)
        unused = [each for each, other in self._streams.items() if other not in self._viewers.values()]
        for each in unused[: max(0, len(self._streams) + 1 - MOST_VIEWERS)]:
            del self._streams[each]
        self._streams[wanted] = stream
        self._outcomes.observer = self
        return stream

    def _row_of(self, number: int, arrival: Arrival) -> bytes:
        return row_of(number, arrival, self.disclosure)

    def _drop_unused(self, wanted: ArrivalFilter, stream: Stream, left: int) -> None:
        """Drop a stream if it has no viewer, and had none since so many have left it."""
        if stream.left == left and stream not in self._viewers.values() and self._streams.get(wanted) is stream:
            del self._streams[wanted]
            if not self._streams:
                self._outcomes.observer = None


def _source(request: Request, *, several: bool) -> Source:
    return Source(request.endpoint, request.id, request.received_at, several, request.intake)
