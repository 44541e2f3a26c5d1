"""Errors of ClickHouse: whether a row or the server is at fault, and their texts."""

from __future__ import annotations

import re

from ingestd.api.errors import SinkFailure, SinkRetry
from ingestd.support.terminal import printable

from ..columns import DataRefused

__all__ = ["failure"]

_MOST_TEXT = 300

# ClickHouse cannot read a value, or the value is against a constraint of the table.
_OF_DATA = {
    6, 25, 26, 27, 34, 35, 38, 40, 41, 53, 69, 70, 72, 117, 130, 131, 321, 349, 376, 395, 467, 469, 675, 676, 691,
}  # fmt: skip

# The server, the user's rights or the table would refuse any row.
_OF_SERVER = {
    3,  # the request was cut off
    16,  # no such column
    60, 81, 218,  # no such table or database, or it was dropped
    73, 74, 75, 76, 77, 79, 87, 88, 172, 204, 214, 243, 275,  # files and folders, and no space
    115, 452,  # an unknown setting, or one that the user must not change
    159, 160,  # a time limit of the server
    164, 242,  # read-only
    192, 193, 194, 195, 291, 497, 516,  # user, password, address, rights
    201, 202, 203,  # quotas and busy servers
    95, 96, 198, 209, 210, 236, 279, 394,  # connections, shutdown, and an operator who ended the query
    225, 244, 254, 255, 265, 285, 286, 289, 297, 319, 364, 369, 415, 416, 519, 529, 999,  # replicas and shards
    241, 173, 425, 439,  # memory, calls of the system and threads
    499,  # the object storage of the table
    252, 1001,  # too many parts; an error of the system
    307,  # too many bytes for a limit of the user
}  # fmt: skip
_BUSY = {401, 403, 404, 407, 408, 425, 429}  # from a proxy, as 5xx

_CODE = re.compile(r"\s*(?:Code: (\d+)[.,] *(?:e\.displayText\(\) = )?(?:DB::\w+: )?)+")
_TAIL = re.compile(
    r",? e\.what\(\) = .*|,? Stack trace.*|\(version [^()]*(?:\([^()]*\))?\)\s*$|: While executing .*", re.DOTALL
)
_ROW = re.compile(r"\(at row (\d+)\)")
_COLUMN = re.compile(r"value of key `?(\w+)`?\)")


def failure(host: str, status: int, code_header: str | None, raw: bytes) -> SinkFailure | SinkRetry:
    """The failure that this answer reports."""
    text = printable(" ".join(raw.decode("utf-8", "replace").split()))
    match = _CODE.match(text)
    if match is None and not (code_header or "").isdigit():
        told = f"{host} answers {status}"
        return SinkRetry(told) if status in _BUSY or status >= 500 else SinkFailure(told)
    code = int(match[1]) if match is not None else int(code_header or 0)
    message = _TAIL.sub("", text[match.end() if match else 0 :]).strip()
    if code in _OF_SERVER:
        return SinkRetry(f"ClickHouse: {message[:_MOST_TEXT]} (code {code})")
    # The rest of such a text would show the row.
    clause = re.sub(r"'[^']*'|\"[^\"]*\"", "…", re.split(r": |\. | before| here", message)[0])[:_MOST_TEXT]
    if code not in _OF_DATA:
        return SinkFailure(f"ClickHouse: {clause} (code {code})")
    column = _COLUMN.search(message)
    row = _ROW.search(message)
    where = f" in column {column[1]}" if column else ""
    return DataRefused(f"{clause}{where} (code {code})", int(row[1]) - 1 if row else None)
