"""The routes of the page, of its data and of live events: /, /status.json and /events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from tornado.http1connection import HTTP1Connection

from ingestd.api.errors import BadRequest, Forbidden, Refused
from ingestd.api.outcomes import Outcome
from ingestd.http.operators import OpsRoute
from ingestd.http.ops import ForBrowsers

from .dashboard.page import page
from .live import LONGEST_ID, ArrivalFilter, LiveEvents, Viewer

__all__ = ["ForPage", "page_routes"]

_TO_TAKE = 30.0  # seconds in which a viewer of live events must take a message


class ForPage(ForBrowsers):
    """Data for this listener's page and for scripts. A page of another site could not read an answer, but its requests
    would take the turns and the places of viewers.
    """

    def prepare(self) -> None:
        super().prepare()
        if not self._finished and self._may_be_of_another_site:
            self.refuse(Forbidden("Browsers get this on the page at / alone. Scripts need no header."))

    @property
    def _may_be_of_another_site(self) -> bool:
        """Whether a page of another site may have made this request.

        No page can send a header of its own to another site without asking first, nor leave out or change the
        `User-Agent`. Browsers tell the site, but not to a listener without TLS that is not on loopback.
        """
        headers = self.request.headers
        if "X-Ingestd-Page" in headers:
            return False
        site = headers.get("Sec-Fetch-Site")
        if site is not None:
            return site not in {"none", "same-origin"}
        return "Origin" in headers or "Referer" in headers or headers.get("User-Agent", "").startswith("Mozilla/")

    @property
    def parameters(self) -> Mapping[str, str]:
        return {name: self.get_query_argument(name, strip=False) for name in self.request.query_arguments}

    def refuse(self, refused: Refused) -> None:
        """Answer with the reason as JSON."""
        self.set_status(refused.status)
        if refused.retry_after is not None:
            self.set_header("Retry-After", str(refused.retry_after))
        self.answer(msgspec.json.encode({"error": refused.detail}))

    def answer(self, body: bytes) -> None:
        self.send(body, "application/json")

    def send(self, body: bytes, kind: str) -> None:
        self.set_header("Content-Type", kind)
        self.set_header("Cache-Control", "no-store")
        self.finish(body)  # not awaited: the future raises if the client has disconnected

    def compute_etag(self) -> None:
        """No ETag: no two answers are equal."""


class PageHandler(ForBrowsers):
    """The dashboard's HTML, the same for everyone. The page fetches its data from /status.json."""

    async def get(self) -> None:
        made = await asyncio.get_running_loop().run_in_executor(None, page)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", made.policy)
        self.set_header("Cache-Control", "no-cache")
        self.set_header("Vary", "Accept-Encoding")
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
            self.finish(made.packed)
        else:
            self.finish(made.html)


class StatusHandler(ForPage):
    """/status.json: the content of the overview, with the parameters `period`, `tenant` and `model` of its revenue.

    - `ready`, `problem`: as in `/readyz`. `problem` is null if nothing is wrong, and names the partitions that cannot
      store events if others can.
    - `now`: rates over the last ten seconds. `skippedPerSecond` are events answered 200 and not stored.
    - `events`, `identifies`, `sessions`, `latency`: `lastMinute` and `total`, of events by outcome and by key (empty:
      an unknown one), of requests by `operation`. `p50Seconds` and `p99Seconds` are of the last minute, null without
      requests.
    - `refusals`: the labels of `ingestd_refusals_total`, `lastMinute`, `total`, `lastAt`.
    - `sinks`: `state` is `running`, `failing`, `paused` or `on another daemon`. `lastDeadLetterReason` is null if the
      daemon no longer keeps it; `deadLettersCommand` lists dead letters. Further `delivered`, `filtered`, `retries`,
      `pending`, `oldestPendingSeconds`, `deadLetters`, `lastError`.
    - `consumers`, `journal`: consumers other than sinks; size and age of the journal.
    - `panels`: panels of plugins: `filters` with their `options`, and `tables` with `columns`, `rows`, `total`.
    - `errors`: newest first; all members but `times` describe the newest line of a kind.
    - `history`: a list of values for each line of the charts, one every `stepSeconds` (5) for 15 minutes; `time` in
      seconds.
    """

    def initialize(self, status: Callable[[Mapping[str, str]], Awaitable[bytes]]) -> None:
        self.status = status

    async def get(self) -> None:
        self.answer(await self.status(self.parameters))


class EventsHandler(ForPage):
    """/events: the rows of live events, as server-sent events.

    These parameters select rows:

    - `outcome`: events with this outcome; may be repeated.
    - `type`: `event` or `identify`.
    - `key`: events with this key; empty: without a known key.
    - `visitor`: events with this `anonymousId` or `userId`.
    - `after`: rows behind the one with this id, like the header `Last-Event-ID`.
    - `earlier`: `1` for a message `earlier` with the last 50 rows from the journal, which comes second, unless the
      stream continues.

    The first message, `hello`, has `showData`, the known `keys`, `rowsPerSecond`, and whether the stream `continues`
    behind the id. Messages `rows` have `rows`, and `came`, the number of events selected so far. A row has `number`
    (gaps are rows left out), `at`, `requestId`, `endpoint`, `outcome` and `type`, and possibly:

    - `key`, `sentKey`: the known event key; an unknown one as it was sent.
    - `index`, `events`: the index in a batch; the number of events of a batch that was refused as a whole.
    - `visitor`: the `anonymousId`, or the number that stands for it.
    - `pointer`, `reason`, `message`, `faults`: the first fault, and the number of faults.
    - `detail`: the record or the problem.

    A client that connects again within ten seconds continues where it was, unless 300 rows or 1 MiB came meanwhile.
    """

    def initialize(self, live: LiveEvents) -> None:
        self.live = live
        self.viewer: Viewer | None = None

    def prepare(self) -> None:
        super().prepare()
        if self._finished:
            return
        try:
            self.wanted = self._wanted()
            self.live.check_room()
        except Refused as refused:
            self.refuse(refused)

    async def head(self) -> None:
        self._begin()
        await self.flush()  # else Tornado would state the length of a body

    async def get(self) -> None:
        last_id = self.request.headers.get("Last-Event-ID") or self.get_query_argument("after", "")
        with self.live.view(self.wanted, last_id) as self.viewer:
            self._begin()
            wants_earlier = self.get_query_argument("earlier", "") == "1" and not self.viewer.continues
            while (message := await self.viewer.next_message()) is not None:
                if wants_earlier:  # behind the greeting
                    message += await self.live.earlier(self.wanted, self.viewer.since)
                    wants_earlier = False
                if not await self._send(message, self.viewer):
                    return

    def on_connection_close(self) -> None:
        if self.viewer is not None:
            self.viewer.end()

    async def _send(self, message: bytes, viewer: Viewer) -> bool:
        """Send a message. False: the client has left, or takes nothing any more."""
        self.write(message)
        sent = asyncio.ensure_future(self.flush())
        await asyncio.wait([sent, viewer.ended], timeout=_TO_TAKE, return_when=asyncio.FIRST_COMPLETED)
        if sent.done() and sent.exception() is None:
            return True
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection)
        connection.close()
        return False

    def _begin(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        # A proxy would keep the first kilobytes back, to send or to compress them together.
        self.set_header("Cache-Control", "no-store, no-transform")
        self.set_header("X-Accel-Buffering", "no")

    def _wanted(self) -> ArrivalFilter:
        """The filter in the query. Raises `BadRequest`."""
        try:
            outcomes = frozenset(Outcome(name) for name in self.get_query_arguments("outcome") if name)
        except ValueError:
            raise BadRequest(f"outcome: expected one of {', '.join(each.value for each in Outcome)}") from None
        kind = self.get_query_argument("type", "")
        if kind not in ("", "event", "identify"):
            raise BadRequest("type: expected event or identify")
        person = self.get_query_argument("visitor", "", strip=False)[:LONGEST_ID] or None
        if person is not None and self.live.disclosure.level == "none":
            raise BadRequest('visitor: [ops] show_data is "none", so visitors cannot be looked up')
        key = self.get_query_argument("key", None, strip=False)
        return ArrivalFilter(outcomes, kind == "identify" if kind else None, key, person)


def page_routes(status: Callable[[Mapping[str, str]], Awaitable[bytes]], live: LiveEvents) -> Sequence[OpsRoute]:
    """`status` makes the page's JSON."""
    return [
        ("/", PageHandler, {}),
        (r"/status\.json/?", StatusHandler, {"status": status}),
        ("/events/?", EventsHandler, {"live": live}),
    ]
