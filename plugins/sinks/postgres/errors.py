"""Which errors are a row's fault and which are the server's, and how they are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ingestd.api.errors import IngestdError, SinkFailure, SinkRetry

from .table import COLUMNS

__all__ = ["DataRefused", "told"]


# Connections, authorization, a rollback, what is not there or not allowed, resources, an operator, the system; and
# read-only, and a lock that is not to be had.
_TROUBLES = {"08", "28", "3D", "3F", "40", "42", "53", "57", "58", "25006", "55P03"}


class DataRefused(SinkFailure):
    """PostgreSQL refuses what is in a row."""


@contextmanager
def told(*, with_rows: bool = True) -> Iterator[None]:
    """Errors of the server and of the way to it become ours, with a reason in which no secret can be.

    Known trouble of the server becomes `SinkRetry`, and so does any error where no rows are sent.
    """
    try:
        yield
    except IngestdError:
        raise
    except Exception as error:
        state = getattr(error, "sqlstate", None)
        if state is not None:  # its detail would show the row
            text = f"{getattr(error, 'message', None) or error} (SQLSTATE {state})"
        elif isinstance(error, OSError) or type(error).__module__.startswith("asyncpg."):
            text = f"the connection: {error}"
        else:
            text = f"unexpected {type(error).__name__}"
        kind: type[SinkFailure | SinkRetry] = SinkFailure
        if not with_rows or _is_out_of_step(error) or (state is not None and _is_its_own_trouble(error, state)):
            kind = SinkRetry
        elif state is not None and _is_of_data(error, state):
            kind = DataRefused
        raise kind(" ".join(text.split())) from error


def _is_its_own_trouble(error: Any, state: str) -> bool:
    """Whether the server or the table has it, whatever is sent: no room, shutting down, read-only, no rights …"""
    if error.server_source_function == "ExecWithCheckOptions":  # a policy for rows refuses one, as for a lack of rights
        return False
    if state in {"23502", "23514"}:
        return not _is_of_data(error, state)
    return state[:2] in _TROUBLES or state in _TROUBLES or _is_without_transactions(error)


def _is_out_of_step(error: Exception) -> bool:
    """Whether the server has ended the session just as asyncpg was to begin with the rows."""
    return type(error).__name__ == "InternalClientError"


def _is_without_transactions(error: Any) -> bool:
    """Whether there are no more of them before a VACUUM, which the server calls 54000."""
    return (error.server_source_function or "").startswith("GetNew")


def _is_of_data(error: Any, state: str) -> bool:
    """Whether a row is at fault, and not the server, its rights or the table."""
    if state == "22P04":
        return False  # the form of COPY
    if state == "23502":  # a column that has come to be
        return error.column_name in COLUMNS
    if state == "23514":  # else it is a partition that is missing
        return error.constraint_name is not None
    return state[:2] in {"22", "23", "54"}
