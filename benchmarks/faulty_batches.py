"""Batches in which every event is at fault, one of each kind, and valid batches of the same size.

A faulty batch may take three times the CPU time of a valid one. `make hostile` measures both in a daemon, and a test in
its own process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["KINDS", "MOST", "SDK", "Kind", "write_schemas"]

MOST = 3.0
"""How many times the CPU time of a valid batch a faulty one may take."""

OWN, SDK = "/api/v1/analytics/batch", "/v1/batch"
_MOST_BYTES = 4 << 20
_MOST_EVENTS = {OWN: 1000, SDK: 2500}
_START = {OWN: b'{"events":[', SDK: b'{"writeKey":"%b","batch":['}

_OPEN = {
    OWN: '{"key":"Page View","anonymousId":"a","data":{"x":',
    SDK: '{"type":"page","anonymousId":"a","properties":{"x":',
}


def _numbers(size: int) -> str:
    return "[" + ",".join("0" * max(1, size // 2 - 1)) + "]" if size > 3 else "0"


def _decimals(size: int) -> str:
    return "[" + ",".join(["19.95"] * max(1, (size - 1) // 6)) + "]" if size > 7 else "0"


def _text(size: int) -> str:
    return json.dumps("x" * (size - 2))


def _objects(size: int) -> str:
    return "[" + ",".join(["{}"] * (size // 3)) + "]" if size > 5 else "0"


def _members(size: int) -> str:
    return "{" + ",".join(f'"{number:03d}":0' for number in range(size // 8)) + "}" if size > 9 else "0"


def _products(size: int) -> str:
    return "[" + ",".join(['{"price":1}'] * (size // 12)) + "]" if size > 14 else "0"


def _nested(size: int) -> str:
    """Values as deep as they may be, side by side."""
    levels = max(1, min(180, (size - 5) // 2))
    deep = "[" * levels + "]" * levels
    lists = [deep] * ((size - 5) // (len(deep) + 1))
    return f'["{"x" * (size - 4 - len(lists) * (len(deep) + 1))}"{"".join("," + each for each in lists)}]'


class Kind(NamedTuple):
    """A kind of fault. `event` makes the JSON of an event by its number, `filler` valid data of a similar form."""

    name: str
    event: Callable[[int], str | bytes]
    filler: Callable[[int], str] = _numbers
    path: str = OWN
    has_own_schema: bool = False

    def faulty(self, key: str) -> bytes:
        made = (self.event(number) for number in range(_MOST_EVENTS[self.path]))
        events = [event if isinstance(event, bytes) else event.encode() for event in made]
        most = (_MOST_BYTES - 100) // (sum(map(len, events)) // len(events) + 1)
        return self._batch(events[: max(1, most)], key)

    def valid(self, key: str) -> bytes:
        """A valid batch of about the size of the faulty one, with as many events as it may have."""
        size, start = len(self.faulty(key)), _OPEN[self.path]
        count = max(1, min(_MOST_EVENTS[self.path], size // (len(start) + 4)))
        event = f"{start}{self.filler(max(1, size // count - len(start) - 3))}}}}}".encode()
        return self._batch([event] * count, key)

    def _batch(self, events: Sequence[bytes], key: str) -> bytes:
        start = _START[self.path]
        return (start % key.encode() if b"%b" in start else start) + b",".join(events) + b"]}"


def _same(text: str | bytes) -> Callable[[int], str | bytes]:
    return lambda number: text


def _event(key: Any, data: Any, **more: Any) -> Callable[[int], str | bytes]:
    return _same(json.dumps({"key": key, "anonymousId": "a", "data": data, **more}, separators=(",", ":")))


def _own(key: str, data: Any, filler: Callable[[int], str] = _numbers) -> tuple[Any, ...]:
    return _event(key, data), filler, OWN, True


def _message(filler: Callable[[int], str] = _text, **members: Any) -> tuple[Any, ...]:
    return _same(json.dumps(members, separators=(",", ":"))), filler, SDK


def _order(products: Sequence[Any], filler: Callable[[int], str] = _text) -> tuple[Any, ...]:
    """An order of an SDK."""
    return _message(filler, type="track", event="Order Completed", anonymousId="a", properties={"products": products})


def _page(data: str) -> Callable[[int], str | bytes]:
    return _same(f'{{"key":"Page View","anonymousId":"a","data":{{"x":{data}}}}}')


_ALL_WRONG = dict.fromkeys(
    ["key", "data", "anonymousId", "userId", "sessionId", "dispatchId", "messageId", "context"], 1
)

KINDS: Sequence[Kind] = (
    Kind("no members", _same('{"a":1}')),
    Kind("numbers", lambda number: str(1000 + number)),
    Kind("a missing member", _same('{"key":"Page View","data":{}}')),
    Kind("all members wrong", _same(json.dumps(_ALL_WRONG))),
    Kind("a wrong context", _event("Page View", {}, context={"campaign": {"source": 1}, "page": {"url": 1}})),
    Kind("one wrong type", _event("Product Viewed", {"price": "x"})),
    Kind("50 faults", _event("Order Completed", {"products": [0] * 50})),
    Kind("1,000 faults", _event("Order Completed", {"products": [0] * 1000})),
    Kind("300 wrong prices", _event("Order Completed", {"products": [{"price": ""}] * 300}), _objects),
    Kind("a fault behind 1,000 products", _event("Order Completed", {"products": [{}] * 1000 + [0]}), _objects),
    Kind("a context of 2,000 numbers", _event("Page View", {}, context={"campaign": {"source": [0] * 2000}})),
    Kind("a context of 500 objects", _event("Page View", {}, context={"page": {"url": [{}] * 500}}), _objects),
    Kind("numbers near the limit", _event("Order Completed", [1e308] * 500), _decimals),
    Kind("a text for data", _event("Order Completed", "x" * 3000), _text),
    Kind("a long visitor", _event("Page View", {}, anonymousId="x" * 3000), _text),
    Kind("an unknown key", _event("Produc Adde to Wishlist", {}), _text),
    Kind("1,000 unknown keys", lambda number: _event(f"Produc Adde to Wishlist{number}", {})(0), _text),
    Kind("a long unknown key", _event("x" * 3000, {}), _text),
    Kind("a list for the key", _event([0] * 1000, {})),
    Kind("a wrong type of event", _event("Page View", {}, type=[1])),
    Kind("wrong traits", _same('{"type":"identify","anonymousId":"a","traits":[]}')),
    Kind("wrong timestamps", _event("Page View", {}, timestamp="2020-01-01T00:00:00." + "0" * 500), _text),
    Kind("unusable ids", _event("Order Completed", {"order_id": "null"}, anonymousId="null", userId="null"), _text),
    Kind("no JSON", _page("tru")),
    Kind("half a surrogate pair", _page('"' + "\\u0041" * 500 + '\\ud800"'), _text),
    Kind("no UTF-8", _same(b'{"key":"Page View","anonymousId":"a","data":{"x":"' + b"x" * 3000 + b'\xff"}}'), _text),
    Kind("250 levels", _page("[" * 250 + "]" * 250), _nested),
    Kind("1,900 levels", _page("[" * 1900 + "]" * 1900), _nested),
    Kind("levels of texts, and no JSON", _page('["",' * 150 + "tru" + "]" * 150), _nested),
    Kind("500 undeclared members", *_own("Strict", {f"{number:03d}": 0 for number in range(500)}, _members)),
    Kind("an undeclared member of 3 kB", *_own("Strict", {"y" * 3000: 0}, _text)),
    Kind("400 wrong members", *_own("Texts", {f"{number:03d}": 0 for number in range(400)}, _members)),
    Kind("a wrong member with 3,000 escapes", *_own("Texts", {"~/" * 1500: 0}, _text)),
    Kind("500 wrong patterns", *_own("Alternatives", {"patterns": ["0"] * 500})),
    Kind("500 objects of no alternative", *_own("Alternatives", {"objects": [{}] * 500}, _objects)),
    Kind(
        "150 levels of alternatives",
        _same('{"key":"Tree","anonymousId":"a","data":' + '{"t":' * 150 + '{"a":"x"}' + "}" * 151),
        _nested, OWN, True,
    ),
    Kind("no members, by an SDK", _same('{"a":1}'), _text, SDK),
    Kind("a wrong type, by an SDK", *_message(type="x")),
    Kind("no visitor, by an SDK", *_message(type="page")),
    Kind("no group, by an SDK", *_message(type="group", anonymousId="a")),
    Kind("an unknown name, by an SDK", *_message(type="track", event="Produc Adde to Wishlist", anonymousId="a")),
    Kind("a long unknown name, by an SDK", *_message(type="track", event="X " * 700, anonymousId="a")),
    Kind("50 faults, by an SDK", *_order([0] * 50)),
    Kind("1,000 prices as text and a fault, by an SDK", *_order([{"price": "1"}] * 1000 + [0], _products)),
    Kind("prices of 4,000 digits as text, by an SDK", *_order([{"price": "1" * 4000}] * 10 + [0])),
    Kind("numbers near the limit, by an SDK", *_order([1e308] * 300, _decimals)),
)  # fmt: skip

_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "Strict": {"properties": {"a": {"type": "number"}}, "additionalProperties": False},
    "Texts": {"additionalProperties": {"type": "string"}},
    "Alternatives": {
        "properties": {
            "patterns": {"items": {"type": "string", "pattern": "^[a-z]{3}$"}},
            "objects": {"items": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
        }
    },
    "Tree": {"properties": {"t": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "a": {"type": "number"}}},
}
"""Schemas of a shop, by their keys."""


def write_schemas(folder: Path) -> None:
    folder.mkdir()
    for key, schema in _SCHEMAS.items():
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:shop:{key}", "title": key}
        (folder / f"{key.lower()}.json").write_text(json.dumps({**head, "type": "object", **schema}))
