"""A catalogue over REST that answers late, or whose answer to a commit is lost."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from requests import Response, Session

__all__ = ["Rest"]

_TIMES = (10.0, 60.0)
"""Seconds to connect, and to wait for an answer. Without them a thread could wait for ever."""


class Rest(RestCatalog):
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
    options["timeout"] = options.get("timeout") or _TIMES
    response: Response = whole(request, **options)
    return response
