"""An extension: the operators' page with live events, journeys and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.api import hookimpl

if TYPE_CHECKING:
    from ingestd.http.operators import Operators
    from ingestd.observability.logs import LogKeeper

__all__ = ["make_log_keeper", "register_routes"]


@hookimpl
def make_log_keeper() -> LogKeeper:
    from .recent_lines import RecentLines  # here: commands need none of it

    return RecentLines()


@hookimpl
def register_routes(operators: Operators) -> None:
    from .console import Console  # here: commands need none of it

    operators.parts.append(Console(operators))
