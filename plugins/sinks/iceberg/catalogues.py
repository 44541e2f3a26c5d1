"""Opens the catalogue of a lake, with limits of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog
from sqlalchemy import make_url

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["open_catalogue"]

_TIMES = {"connect_timeout": "10", "keepalives_idle": "20", "keepalives_interval": "10", "tcp_user_timeout": "60000"}
"""Those of PostgreSQL's client: to connect, and for a server that is silent, in seconds and milliseconds."""


def open_catalogue(properties: Mapping[str, str]) -> Catalog:
    name, type_, uri = properties.get("name", "ingestd"), properties.get("type"), properties["uri"]
    if type_ == "rest" or (type_ is None and uri.startswith("http")):
        from .rest import Rest

        return Rest(name, **properties)
    return load_catalog(name, **{**properties, "uri": _with_times(uri)})


def _with_times(uri: str) -> str:
    """The address of a catalogue with time limits, without which a thread could wait for ever for PostgreSQL."""
    if not uri.startswith(("postgresql:", "postgresql+psycopg2:")):
        return uri
    url = make_url(uri)
    return url.update_query_dict(_TIMES | dict(url.query)).render_as_string(hide_password=False)
