"""/openapi.json of the operators' listener: the document with the schemas in force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ingestd.config import Config
from ingestd.http.operators import Operators, OperatorsPart
from ingestd.http.ops import ForBrowsers
from ingestd.validation.validator import Validator

__all__ = ["ServedDocument"]


class ServedDocument(OperatorsPart):
    def __init__(self, operators: Operators) -> None:
        self._events_at = operators.events_at
        self._validator = operators.validator
        self.routes = [(r"/openapi\.json/?", OpenApiHandler, {"make": self._make})]

    def apply_options(self, config: Config, validator: Validator) -> None:
        self._validator = validator

    def _make(self) -> bytes:
        from .document import listener_url, make_document, to_json  # here, to keep the start of a daemon short

        return to_json(make_document(self._validator.sources, listener_url(self._events_at())))


class OpenApiHandler(ForBrowsers):
    def initialize(self, make: Callable[[], bytes]) -> None:
        self.make = make

    async def get(self) -> None:
        document = await asyncio.get_running_loop().run_in_executor(None, self.make)
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-cache")
        self.finish(document)
