"""What the table has of a time: digests of ids, and the ids. Copies that a merge has not removed yet count once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ingestd.api.sink import Digest

if TYPE_CHECKING:
    from .client import Server
    from .table import Table

__all__ = ["read_digests", "read_ids"]

_PAGE = 10_000
"""Ids of one answer: the client takes a megabyte."""


async def read_digests(server: Server, table: Table, begin: int, end: int, step: int) -> Mapping[int, Digest]:
    # By seconds, because a table of an old server has no milliseconds.
    rows = await server.rows(
        f"SELECT toString(part) AS part, toString(count()) AS count, toString(sumWithOverflow(number)) AS sum FROM ("  # noqa: S608
        f"SELECT DISTINCT id, intDiv(toUnixTimestamp(received_at), {step // 1000}) AS part,"
        " bitShiftRight(reinterpretAsUInt64(reverse(substring(MD5(id), 1, 8))), 4) AS number"
        f" FROM {table.quoted} WHERE {_within(begin, end)}) GROUP BY part"
    )
    return {int(row["part"]): Digest(int(row["count"]), int(row["sum"])) for row in rows}


async def read_ids(server: Server, table: Table, begin: int, end: int) -> Sequence[str]:
    found: list[str] = []
    while len(found) % _PAGE == 0:
        rows = await server.rows(
            f"SELECT DISTINCT id FROM {table.quoted} WHERE {_within(begin, end)}"  # noqa: S608 - the names are checked
            f" AND id > unhex('{(found[-1] if found else '').encode().hex()}') ORDER BY id LIMIT {_PAGE}"
        )
        found += [row["id"] for row in rows]
        if not rows:
            break
    return found


def _within(begin: int, end: int) -> str:
    return f"received_at >= toDateTime({begin // 1000}, 'UTC') AND received_at < toDateTime({end // 1000}, 'UTC')"
