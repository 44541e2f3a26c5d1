"""The hooks that only extensions implement: they get the insides of the daemon, which are promised to no plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.api.hookspecs import hookspec

if TYPE_CHECKING:
    from ingestd.http.operators import Operators

__all__ = ["register_routes"]


@hookspec
def register_routes(operators: Operators) -> None:
    """Add a part to the operators' listener, once at the start: `operators.parts.append(part)`."""
