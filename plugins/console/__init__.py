"""An extension: the operators' page with live events, journeys and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.api import hookimpl

if TYPE_CHECKING:
    from ingestd.http.operators import Operators

__all__ = ["register_routes"]


@hookimpl
def register_routes(operators: Operators) -> None:
    from .console import Console  # here: commands need none of it

    operators.parts.append(Console(operators))
