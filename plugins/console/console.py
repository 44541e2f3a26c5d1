"""The operators' page as a part of the operators' listener."""

from __future__ import annotations

from ingestd.config import Config
from ingestd.http.operators import Operators, OperatorsPart, Shown
from ingestd.support.periodic import every
from ingestd.validation.validator import Validator

from .dashboard import Overview, Panels, Sources
from .data_routes import data_routes
from .dead_letters import DeadLetterPages
from .disclosure import Disclosure, disclosure_of
from .journeys import JourneyReader
from .live import LiveEvents
from .page_routes import page_routes
from .recent_lines import recent_lines
from .sales import Sales

__all__ = ["Console"]


class Console(OperatorsPart):
    def __init__(self, operators: Operators) -> None:
        daemon = operators.daemon
        self._live = LiveEvents(
            disclosure_of(operators.config, operators.validator), operators.outcomes, daemon.partitions
        )
        self._lines = recent_lines()
        panels = Panels(operators.hooks, daemon.store)
        sources = Sources(
            operators.metrics, operators.problem, operators.retentions, self._lines, daemon.config_path,
            operators.remark,
        )  # fmt: skip
        self._overview = Overview(sources, panels.ask)
        daemon.watch(every("overview", self._overview.add_sample, first=0), name="overview")
        self._dead_letters = DeadLetterPages(daemon.partitions, daemon.config_path, disclosure=self._disclosure)
        journeys = JourneyReader(
            operators.hooks, daemon.partitions, operators.placements, daemon.unusable_ids,
            disclosure=self._disclosure,
        )  # fmt: skip
        self._sales = Sales(daemon.plugin, operators.demands, disclosure=self._disclosure)
        self.routes = [
            *page_routes(self._overview.render, self._live),
            *data_routes(journeys, self._dead_letters, self._sales),
        ]

    def _disclosure(self) -> Disclosure:
        return self._live.disclosure

    def show(self, shown: Shown) -> None:
        self._overview.show(shown)
        self._dead_letters.show(shown)

    def apply_options(self, config: Config, validator: Validator) -> None:
        self._live.apply_disclosure(disclosure_of(config, validator))

    def forget(self) -> None:
        self._live.forget()
        self._lines.forget()
        self._sales.forget()

    def close(self) -> None:
        self._live.close()
