"""Which errors are a row's fault and which are the server's, and how they are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ingestd.errors import IngestdError, SinkRetry

from .table import COLUMNS

__all__ = ["DataRefused", "told"]


class DataRefused(SinkRetry):
    """PostgreSQL refuses what is in a row."""


@contextmanager
def told() -> Iterator[None]:
    """Errors of the server and of the way to it become `SinkRetry`, with a reason in which no secret can be."""
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
        kind = DataRefused if state is not None and _is_of_data(error, state) else SinkRetry
        raise kind(" ".join(text.split())) from error


def _is_of_data(error: Any, state: str) -> bool:
    """Whether a row is at fault, and not the server, its rights or the table."""
    if state == "22P04" or (error.server_source_function or "").startswith("GetNew"):
        return False  # the form of COPY; no more transactions before a VACUUM, which the server calls 54000
    if state == "23502":  # a column that has come to be
        return error.column_name in COLUMNS
    if state == "23514":  # else it is a partition that is missing
        return error.constraint_name is not None
    return state[:2] in {"22", "23", "54"}
