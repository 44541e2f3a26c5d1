"""Rows into the table, by COPY in its binary form, and which of them are not there yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .rows import Row
from .table import COLUMNS, Table

__all__ = ["copy", "new_rows"]

_PORTION = 8 << 20  # of one COPY: it is handed over at once, which must not hold up the event loop
_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"


async def new_rows(connection: Any, table: Table, rows: Sequence[Row]) -> list[Row]:
    """Those that are not there, each once."""
    query = f"SELECT id FROM {table.quoted} WHERE id = ANY($1)"  # noqa: S608 - the name is checked and quoted
    held = {found for (found,) in await connection.fetch(query, [row.id for row in rows])}
    new: dict[str, Row] = {}
    for row in rows:
        if row.id not in held:
            new.setdefault(row.id, row)
    return [*new.values()]


async def copy(connection: Any, table: Table, rows: Sequence[Row]) -> None:
    """All of them in one transaction."""
    portions = _portions(rows)
    if len(portions) == 1:  # one statement is a transaction
        await _copy_portion(connection, table, portions[0])
    elif portions:
        async with connection.transaction():
            for portion in portions:
                await _copy_portion(connection, table, portion)


async def _copy_portion(connection: Any, table: Table, portion: Sequence[bytes]) -> None:
    # In one piece, not row by row: while asyncpg waits to send the next, it does not notice a lost connection.
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
