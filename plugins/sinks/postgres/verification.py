"""What the table has of a time: digests of ids, and the ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ingestd.api.sink import Digest

from .table import Table

__all__ = ["read_digests", "read_ids"]


async def read_digests(connection: Any, table: Table, begin: int, end: int, step: int) -> Mapping[int, Digest]:
    query = f"""
    SELECT floor(extract(epoch FROM received_at) * 1000 / $3)::bigint, count(*),
        sum(('x' || left(md5(id), 15))::bit(60)::bigint) % 18446744073709551616
    FROM {table.quoted} WHERE received_at >= $1 AND received_at < $2 GROUP BY 1
    """  # noqa: S608 - the name is checked and quoted
    rows = await connection.fetch(query, _time(begin), _time(end), step)
    return {part: Digest(count, int(total)) for part, count, total in rows}


async def read_ids(connection: Any, table: Table, begin: int, end: int) -> Sequence[str]:
    query = f"SELECT id FROM {table.quoted} WHERE received_at >= $1 AND received_at < $2"  # noqa: S608 - as above
    return [found for (found,) in await connection.fetch(query, _time(begin), _time(end))]


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds // 1000, UTC)
