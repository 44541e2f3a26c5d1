"""A transaction for the views of `ingestd models`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ingestd.api.errors import SinkFailure

from .client import atomic
from .errors import told

__all__ = ["Transaction", "alone"]

_LOCK = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'ingestd')})"
"""PostgreSQL refuses to create the same schema or view twice at once, `IF NOT EXISTS` or not."""
_DEPENDED_ON = "2BP01"
"""The detail of this error names the views that depend on one."""


class Transaction:
    """SQL within the transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def query(self, text: str) -> Sequence[Mapping[str, Any]]:
        with told(with_rows=False):
            return [dict(row) for row in await self._connection.fetch(text)]

    async def execute(self, statements: Sequence[str]) -> None:
        """Carry out all statements or none. After a refusal the transaction goes on without them."""
        with told(with_rows=False):
            try:
                async with atomic(self._connection):
                    for statement in statements:
                        await self._connection.execute(statement)
            except Exception as error:
                if getattr(error, "sqlstate", None) == _DEPENDED_ON:
                    raise SinkFailure(f"{error}: {getattr(error, 'detail', '')}") from None
                raise


@asynccontextmanager
async def alone(connection: Any) -> AsyncIterator[Transaction]:
    """A transaction that sees what the last one has done: one begins behind the end of the other.

    The connection is for nothing else, and is closed afterwards.
    """
    async with atomic(connection, "read_committed"):
        await connection.execute("SET LOCAL lock_timeout = '10s'")  # who waits for a lock holds up all later readers
        await connection.execute(_LOCK)
        yield Transaction(connection)
