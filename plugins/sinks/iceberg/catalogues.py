"""The catalogue of a lake, with limits of time, and with commits over REST whose answer comes late or is lost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from requests import Response, Session
from sqlalchemy import make_url

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["open_catalogue"]

_POSTGRES_TIMES = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "tcp_user_timeout": "60000",
}
"""Those of PostgreSQL's client: to connect, and for a server that is silent, in seconds and milliseconds."""
_REST_TIMES = (10.0, 60.0)
"""Seconds to connect, and to wait for an answer. Without them a thread could wait for ever."""


def open_catalogue(properties: Mapping[str, str]) -> Catalog:
    name, type_, uri = properties.get("name", "ingestd"), properties.get("type"), properties["uri"]
    if type_ == "rest" or (type_ is None and uri.startswith("http")):
        return _Rest(name, **properties)
    return load_catalog(name, **{**properties, "uri": _with_times(uri)})


def _with_times(uri: str) -> str:
    """The address of a catalogue with time limits, without which a thread could wait for ever for PostgreSQL."""
    if not uri.startswith(("postgresql:", "postgresql+psycopg2:")):
        return uri
    url = make_url(uri)
    return url.update_query_dict(_POSTGRES_TIMES | dict(url.query)).render_as_string(hide_password=False)


class _Rest(RestCatalog):
    def _config_headers(self, session: Session) -> None:
        super()._config_headers(session)  # the first call for each session, before its first request
        session.send = partial(_send, session.send)  # type: ignore[method-assign]

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """After a conflict pyiceberg deletes the files of a commit.

        A gateway that sends a request twice answers with a conflict, too, although the first one was carried out.
        """
        try:
            answer: CommitTableResponse = super().commit_table(table, requirements, updates)
        except CommitFailedException:
            added = {each.snapshot.snapshot_id for each in updates if isinstance(each, AddSnapshotUpdate)}
            now = self.load_table(table.name())
            if not added or not added <= {each.snapshot_id for each in now.snapshots()}:
                raise
            answer = CommitTableResponse(**{"metadata": now.metadata, "metadata-location": now.metadata_location})
        return answer


def _send(whole: Any, request: Any, **options: Any) -> Response:
    options["timeout"] = options.get("timeout") or _REST_TIMES
    response: Response = whole(request, **options)
    return response
