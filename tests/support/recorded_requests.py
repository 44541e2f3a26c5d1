"""Requests as the SDKs of Segment and RudderStack send them (tests/data/segment), and the records that they become."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ingestd.api.times import parse_time
from ingestd.support.ids import named_uuid

__all__ = ["RECORDED", "RecordedRequest", "basic", "recorded", "session_of", "stored_form", "visitor_of"]

_FOLDER = Path(__file__).parents[1] / "data" / "segment"
RECORDED = sorted(path.stem for path in _FOLDER.glob("*.json"))


class RecordedRequest(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: bytes
    records: list[dict[str, Any]]


def basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"{key}:".encode()).decode()


def visitor_of(tenant: str, user: str) -> str:
    """The visitor of a message that names only its user."""
    return named_uuid("visitor of user", tenant, user)


def session_of(tenant: str, visitor: str, number: str) -> str:
    """The session that RudderStack numbers."""
    return named_uuid("numbered session", tenant, visitor, number)


def recorded(name: str, key: str, tenant: str = "shop") -> RecordedRequest:
    """A recorded request with this write key."""
    text = (_FOLDER / f"{name}.json").read_text()
    text = text.replace("{KEY}", key).replace("{BASIC}", basic(key).removeprefix("Basic "))
    text = re.sub(r"\{USER ([\w-]+)\}", lambda match: visitor_of(tenant, match[1]), text)
    text = re.sub(r"\{SESSION ([\w-]+) (\d+)\}", lambda match: session_of(tenant, match[1], match[2]), text)
    file = json.loads(text)
    raw: str = file["raw"] if "raw" in file else json.dumps(file["body"], ensure_ascii=False, separators=(",", ":"))
    body, headers = raw.encode(), dict(file["headers"])
    if file.get("gzip"):
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    return RecordedRequest(file["path"], headers, body, file["records"])


def stored_form(record: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a record that a recorded request tells of."""
    received, happened = parse_time(record["receivedAt"]), parse_time(record["timestamp"])
    assert received is not None
    assert happened is not None
    return {name: record.get(name) for name in expected if name != "millisecondsAgo"} | {
        "millisecondsAgo": received - happened
    }
