"""Errors of PostgreSQL: whether a row or the server is at fault, and their texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ingestd.api.errors import IngestdError, SinkFailure, SinkRetry

from ..columns import DataRefused
from .table import COLUMNS

__all__ = ["told"]


# Classes: connections, authorization, missing databases and schemas, rollbacks, missing or forbidden objects,
# resources, operators' interventions, system errors. Single codes: a read-only transaction, and a lock not available.
_OF_SERVER = {"08", "28", "3D", "3F", "40", "42", "53", "57", "58", "25006", "55P03"}


@contextmanager
def told(*, with_rows: bool = True) -> Iterator[None]:
    """Turn errors of the server and the connection into errors of a sink, with a reason that holds no secret.

    Known failures of the server become `SinkRetry`. So does any error if no rows are sent.
    """
    try:
        yield
    except IngestdError:
        raise
    except Exception as error:
        state = getattr(error, "sqlstate", None)
        if state is not None:  # only the message, because the detail would show the row
            text = f"{getattr(error, 'message', None) or error} (SQLSTATE {state})"
        elif isinstance(error, OSError) or type(error).__module__.startswith("asyncpg."):
            text = f"the connection: {error}"
        else:
            text = f"unexpected {type(error).__name__}"
        kind: type[SinkFailure | SinkRetry] = SinkFailure
        if not with_rows or _is_out_of_step(error) or (state is not None and _is_of_server(error, state)):
            kind = SinkRetry
        elif state is not None and _is_of_data(error, state):
            kind = DataRefused
        raise kind(" ".join(text.split())) from error


def _is_of_server(error: Any, state: str) -> bool:
    """Whether the server or the table would refuse any row: no room, shutting down, read-only, no rights …"""
    if error.server_source_function == "ExecWithCheckOptions":  # a row policy refuses a row; the code says no rights
        return False
    if state in {"23502", "23514"}:
        return not _is_of_data(error, state)
    return state[:2] in _OF_SERVER or state in _OF_SERVER or _is_without_transactions(error)


def _is_out_of_step(error: Exception) -> bool:
    """Whether the server has ended the session just before asyncpg sent the rows."""
    return type(error).__name__ == "InternalClientError"


def _is_without_transactions(error: Any) -> bool:
    """Whether no transaction ids are left until a VACUUM. The server's code for this is 54000."""
    return (error.server_source_function or "").startswith("GetNew")


def _is_of_data(error: Any, state: str) -> bool:
    """Whether a row is at fault, and not the server, the user's rights or the table."""
    if state == "22P04":
        return False  # the format of COPY
    if state == "23502":  # NOT NULL, perhaps of a column that was added to the table
        return error.column_name in COLUMNS
    if state == "23514":  # without a constraint, a partition is missing
        return error.constraint_name is not None
    return state[:2] in {"22", "23", "54"}
