"""The seam for extensions that answer operators, such as the operators' page: what they may show, and their routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tornado.web import RequestHandler

from ingestd.api.hookspecs import Daemon
from ingestd.api.options import Address
from ingestd.config import Config
from ingestd.consumers.status import ConsumerTotals
from ingestd.delivery import SinkStatus
from ingestd.hooks.caller import Hooks
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.outcomes import Outcomes
from ingestd.scheduling.demand import Demand
from ingestd.storage.placements import Placements
from ingestd.storage.retentions import Retentions
from ingestd.validation.validator import Validator

__all__ = ["Operators", "OperatorsPart", "OpsRoute", "Shown"]

OpsRoute = tuple[str, type[RequestHandler], dict[str, Any]]
"""The path of a handler, and the arguments of its `initialize`."""


class Shown(NamedTuple):
    """The sinks and consumers, which a reload may replace. Any thread may read it."""

    sinks: Sequence[SinkStatus] = ()
    types: Mapping[str, str] = {}
    """The types of the sinks, by name."""
    consumers: Sequence[ConsumerTotals] = ()
    """The consumers other than sinks."""


class OperatorsPart:
    """What an extension adds to the operators' listener. A method that it does not need does nothing."""

    routes: Sequence[OpsRoute] = ()

    def show(self, shown: Shown) -> None:
        """Called at the start and after each reload."""

    def apply_options(self, config: Config, validator: Validator) -> None:
        """A reload has put these into force."""

    def forget(self) -> None:
        """A person was forgotten. Drop all texts of people from memory."""

    def close(self) -> None:
        """The daemon stops. End all answers that would go on."""


@dataclass(frozen=True)
class Operators:
    """A daemon as extensions see it in `register_routes`. They add their parts to `parts`."""

    parts: list[OperatorsPart]
    daemon: Daemon
    """As all plugins see it."""
    config: Config
    """The one at the start, like `validator`. `OperatorsPart.apply_options` gets later ones."""
    validator: Validator
    events_at: Callable[[], Address]
    """The address of the events' listener, once it listens."""
    metrics: Metrics
    problem: Callable[[], str | None]
    """The reason if the daemon is not ready, None if it is ready."""
    remark: Callable[[], str | None]
    """What is wrong although the daemon is ready, or None."""
    retentions: Retentions
    placements: Placements
    hooks: Callable[[], Hooks]
    """The hooks of the present generation."""
    demands: Sequence[Demand]
    """What events want of the event loop, of each partition: long work for operators gives way to them."""
    outcomes: Outcomes
