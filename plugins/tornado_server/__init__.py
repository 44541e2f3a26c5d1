"""An extension: the HTTP server of Tornado for events, in place of the fast one (`[http] server = "tornado"`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestd.api import hookimpl

if TYPE_CHECKING:
    from ingestd.http.app import MakeServer

__all__ = ["register_servers"]


@hookimpl
def register_servers(servers: dict[str, MakeServer]) -> None:
    from .server import IngestServer  # here: commands need none of it

    servers["tornado"] = IngestServer
