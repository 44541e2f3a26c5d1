"""Random mutations of valid bodies. The same seed makes the same mutations."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from .event_keys import KEYS

__all__ = ["mutate_bytes", "mutate_value", "valid_bodies"]

PAYLOADS = Path(__file__).parents[1] / "data" / "payloads"

_VALUES: Sequence[Any] = [
    None, True, False, 0, -1, 1.5, 2**53 + 1, 2**64, -(2**63) - 1, 10**300, 1e300, 5e-324, -0.0, "", " ", "x" * 600,
    "\0", "\ufeff", "\U0001f600", "null", "0", "3f2c8a54-9f6e-4c52-9d0e-7f1f6d0b8a11", "../../etc/passwd", "'; --",
    "{{7*7}}", "${jndi:x}", "%s%n", "=1+1", [], [[]], [None] * 20, {}, {"": {}}, {"__proto__": {"a": 1}}, {"$ref": "#"},
    "2026-02-30T25:61:61Z", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00", list(range(50)), {"key": "Page View"},
]  # fmt: skip
_NAMES = [
    "",
    "key",
    "data",
    "tenant",
    "id",
    "receivedAt",
    "messageId",
    "timestamp",
    "extra",
    "__proto__",
    "a/b~c",
    "\0",
]
_PIECES = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"\\udc00", b"null", b"true", b"NaN",
    b"-", b"-Infinity", b"1e999", b"1e-999", b"0x1", b"00", b".", b"9" * 50, b"\xff", b"\xc0\x80", b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"\0", b"\n", b"\x1f", b"//", b"/**/", b"'", b"{}", b"[[[[[[[[", b'{"a":' * 5, b"\xe9",
    b"\xf0\x9f\x98\x80",
]  # fmt: skip


def valid_bodies() -> Iterator[dict[str, Any]]:
    """An event of each key, with all members of the envelope."""
    for key in KEYS:
        data = json.loads((PAYLOADS / f"{key.lower().replace(' ', '_')}.json").read_text(encoding="utf-8"))
        yield {
            "key": key,
            "anonymousId": "visitor-1",
            "userId": "user-1",
            "sessionId": "3f2c8a54-9f6e-4c52-9d0e-7f1f6d0b8a11",
            "timestamp": "2026-01-01T00:00:00Z",
            "dispatchId": "mail-1",
            "context": {"campaign": {"source": "news"}, "page": {"url": "https://shop.example/"}, "locale": "de"},
            "traits": {"email": "someone@shop.example"},
            "data": data,
        }


def mutate_value(chance: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """A copy with a few values, at any depth, replaced, renamed, added or removed."""
    spoilt: dict[str, Any] = json.loads(json.dumps(body))
    for _ in range(chance.choice([1, 1, 2, 5])):
        node: Any = spoilt
        while True:
            below = [
                value for value in (node.values() if isinstance(node, dict) else node) if isinstance(value, dict | list)
            ]
            if not below or chance.random() < 0.4:
                break
            node = chance.choice(below)
        if isinstance(node, list):
            node.insert(chance.randint(0, len(node)), _value(chance))
        elif not node or chance.random() < 0.3:
            node[chance.choice(_NAMES)] = _value(chance)
        else:
            name = chance.choice(list(node))
            value = node.pop(name)
            change = chance.random()
            if change < 0.6:
                node[name] = _value(chance)
            elif change < 0.8:
                node[chance.choice(_NAMES)] = value
    return spoilt


def _value(chance: random.Random) -> Any:
    return deepcopy(chance.choice(_VALUES))


def mutate_bytes(chance: random.Random, raw: bytes) -> bytes:
    """A copy with a few bytes changed, removed, doubled, moved or inserted."""
    spoilt = bytearray(raw)
    for _ in range(chance.choice([1, 1, 1, 2, 4, 16])):
        at = chance.randrange(len(spoilt) + 1)
        size = chance.choice([1, 1, 2, 8, 100])
        match chance.randrange(6):
            case 0:
                spoilt[at : at + 1] = bytes([chance.randrange(256)])
            case 1 if at < len(spoilt):
                spoilt[at] ^= 1 << chance.randrange(8)
            case 2:
                del spoilt[at : at + size]
            case 3:
                spoilt[at:at] = spoilt[at : at + size]
            case 4:
                spoilt[at:at] = chance.choice(_PIECES)
            case _:
                other = chance.randrange(len(spoilt) + 1)
                spoilt[at:at] = spoilt[other : other + size]
    return bytes(spoilt)
