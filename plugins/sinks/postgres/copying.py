"""Copies rows into the table with the binary COPY, and finds rows that the table does not have yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .rows import Row
from .table import COLUMNS, Table

__all__ = ["copy", "new_rows"]

_PORTION = 8 << 20  # bytes of one COPY: they are sent at once, which must not hold up the event loop
_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"


async def new_rows(connection: Any, table: Table, rows: Sequence[Row]) -> list[Row]:
    """The rows that the table does not have, each once."""
    query = f"SELECT id FROM {table.quoted} WHERE id = ANY($1)"  # noqa: S608 - the name is checked and quoted
    held = {found for (found,) in await connection.fetch(query, [row.id for row in rows])}
    new: dict[str, Row] = {}
    for row in rows:
        if row.id not in held:
            new.setdefault(row.id, row)
    return [*new.values()]


async def copy(connection: Any, table: Table, rows: Sequence[Row]) -> None:
    """Copy all rows in one transaction."""
    portions = _portions(rows)
    if len(portions) == 1:  # one statement is a transaction
        await _copy_portion(connection, table, portions[0])
    elif portions:
        async with connection.transaction():
            for portion in portions:
                await _copy_portion(connection, table, portion)


async def _copy_portion(connection: Any, table: Table, portion: Sequence[bytes]) -> None:
    # In one piece, because asyncpg does not notice a lost connection while it waits to send another row.
    data = memoryview(b"".join([_BEGIN, *portion, _END]))
    await connection.copy_to_table(
        table.name, schema_name=table.schema, columns=[*COLUMNS], source=data, format="binary"
    )


def _portions(rows: Sequence[Row]) -> list[list[bytes]]:
    portions: list[list[bytes]] = []
    room = 0
    for _, head, body in rows:
        if len(body) > room:
            portions.append([])
            room = _PORTION
        portions[-1] += (head, body)
        room -= len(body)
    return portions
