"""The data of views, for the page and for scripts: /sales.json, /orders.json, /journey.json, /dead-letters.json."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

from tornado.web import HTTPError

from ingestd.api.errors import BadRequest, Failed, Refused
from ingestd.api.journeys import JourneyQuery
from ingestd.http.operators import OpsRoute

from .dead_letters import DeadLetterPages, LetterBound
from .journeys import JourneyReader
from .page_routes import ForPage
from .sales import Sales

__all__ = ["data_routes"]

log = logging.getLogger("ingestd.ops")


class _DataHandler(ForPage):
    """Answers with JSON, also in case of an error. The work ends if the client disconnects."""

    _work: asyncio.Future[bytes] | None = None

    def make(self) -> Awaitable[bytes]:
        """The answer. Raises `Refused`."""
        raise NotImplementedError

    async def get(self) -> None:
        try:
            self._work = asyncio.ensure_future(self.make())
            body = await self._work
        except Refused as refusal:
            self.refuse(refusal)
        except asyncio.CancelledError:
            if self._work is None or not self._work.cancelled():
                raise
        except HTTPError:  # a parameter that is not UTF-8
            raise
        except Exception:
            log.exception("%s: failed", self.request.path)
            self.refuse(Failed("An internal error. The log has the reason."))
        else:
            self.answer(body)

    def on_connection_close(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def parameter(self, name: str) -> str | None:
        return self.get_query_argument(name, None, strip=False) or None

    def number(self, name: str) -> int | None:
        text = self.parameter(name)
        if text is not None and not re.fullmatch("[0-9]{1,18}", text):
            raise BadRequest(f"The parameter {name} is a whole number.")
        return None if text is None else int(text)


class JourneyHandler(_DataHandler):
    """/journey.json: the journey of one of `order`, `user` and `visitor`.

    Further parameters are `tenant`, and `before` to continue a search. Some members of the answer:

    - `hidden`: whether ids are hidden.
    - `sessions`: `whole` tells whether the first event was read, `leftOut` the number of events left out in the middle.
    - `moments`: what is on the time line. `kind` is `touchpoint`, `order`, `refund`, `cancellation`, or a plugin's.
      `removed` tells whether the journal has removed the record.
    - `orders`, `notes`: explanations of plugins.
    - `searched`: what was read. `limit` ended the search, and `next` is the value of `before` for older records; both
      may be null.
    """

    def initialize(self, journeys: JourneyReader) -> None:
        self.journeys = journeys

    async def make(self) -> bytes:
        query = JourneyQuery(*(self.parameter(name) for name in ("order", "user", "visitor", "tenant")))
        return await self.journeys.render(query, self.number("before"))


class DeadLettersHandler(_DataHandler):
    """/dead-letters.json: a page of the dead letters of a sink, and the commands for all sinks.

    `sink` is by default the one with the most dead letters. The list begins below the number `before`; `next` is its
    value for older letters, or null. In `sinks`, `newest` is the number of the newest dead letter ever. Over several
    partitions, `before` is `PARTITION:NUMBER`, each letter also has its `partition`, and `missing` says which
    partitions are out of reach.
    """

    def initialize(self, dead_letters: DeadLetterPages) -> None:
        self.dead_letters = dead_letters

    async def make(self) -> bytes:
        return await self.dead_letters.render(self.parameter("sink"), self._before())

    def _before(self) -> LetterBound | None:
        """A number, or `PARTITION:NUMBER` in a store with several partitions."""
        partition, separator, number = (self.parameter("before") or "").rpartition(":")
        if separator and re.fullmatch("[0-9]{1,18}", number):
            return LetterBound(partition, int(number))
        plain = self.number("before")
        return None if plain is None else LetterBound("", plain)


class SalesHandler(_DataHandler):
    """/sales.json, /sales.csv and /orders.json: orders, revenue and sessions of a period, or its single orders.

    Parameters are `days` (1, 7 or 30), or `since` and `until`; `compare=0`; and `tenant`. `rows` has the members of
    `ingestd attribution report --json`, without `new` and `returning`; `/sales.csv` has them as a file. `course` has
    the sums of each hour or day, `notes` what is missing.

    `/orders.json` has the newest orders of a row with the same parameters, `currency`, and some of `channel`, `source`,
    `medium` and `name`; without a period, the last ten orders.
    """

    def initialize(self, render: Callable[[Mapping[str, str]], Awaitable[bytes]]) -> None:
        self.render_sales = render

    async def make(self) -> bytes:
        return await self.render_sales(self.parameters)


class SalesFileHandler(SalesHandler):
    """The rows of a period as a file."""

    def answer(self, body: bytes) -> None:
        if self.get_status() == HTTPStatus.OK:
            self.send(body, "text/csv; charset=utf-8")
        else:
            super().answer(body)


def data_routes(journeys: JourneyReader, dead_letters: DeadLetterPages, sales: Sales) -> Sequence[OpsRoute]:
    return [
        (r"/sales\.json/?", SalesHandler, {"render": sales.render}),
        (r"/sales\.csv/?", SalesFileHandler, {"render": sales.render_csv}),
        (r"/orders\.json/?", SalesHandler, {"render": sales.render_orders}),
        (r"/journey\.json/?", JourneyHandler, {"journeys": journeys}),
        (r"/dead-letters\.json/?", DeadLettersHandler, {"dead_letters": dead_letters}),
    ]
