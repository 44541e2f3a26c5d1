"""What a stranger's request leaves behind: bytes of records, state and log for the bytes that came, way by way.

One `ingestd serve` with default limits gets the requests of all ways in turn, with the public key. For each it prints
the bytes that came, unpacked; the bytes of records and state in the SQLite file, and of lines in the log; and the bytes
of the largest form in which a sink gets these records, a row for ClickHouse. Requests that prepare a way are left out.

Exits 1 if a way left more than ten bytes for one that came, 4 KiB an event and 64 KiB an attributed order, or if a row
for ClickHouse has more than twice that.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ingestd.api.events import Record
from ingestd.plugins.sinks.clickhouse.rows import lines_of, row_of
from ingestd.plugins.sinks.clickhouse.table import Layout
from tests.support.daemon import Reply
from tests.support.stored_bytes import all_processed, read_records, stored_bytes
from tests.support.webhook_server import webhook_server

from .servers import BASE_PATH, CONFIG, Server, create_key, ingestd

__all__ = ["AN_EVENT", "AN_ORDER", "A_BYTE", "WAYS", "Post", "Row", "Way", "measure"]

A_BYTE = 10
AN_EVENT = 4 * 1024
AN_ORDER = 64 * 1024
"""The most bytes for a byte that came, beside them for an event, and for an attributed order."""

_LAYOUT = Layout("", frozenset(), range(1, 9999), (), frozenset())  # JSON as text, which takes the most

_IDENTIFY = f"{BASE_PATH}/identify/public"
_ORDER = "Order Completed"
_UNDELIVERED = "Coupon Denied"  # the key of events that the sink `refusing` does not take

_MORE = """\
[sinks.refusing]
type = "webhook"
url = "http://127.0.0.1:{port}/"
filter = {{ keys = ["{key}"] }}
retry = {{ attempts = 1, initial = "10ms", max = "10ms" }}
[plugins.scrub]
hash = ["/data/hashed/*"]
secret = "a secret of the bench"
"""


class Post(NamedTuple):
    body: bytes
    path: str = f"{BASE_PATH}/track"
    events: int = 1


class Way(NamedTuple):
    name: str
    posts: Sequence[Post]
    before: Sequence[Post] = ()
    orders: int = 0
    """How many orders the posts have attributed."""


class Row(NamedTuple):
    way: str
    came: int
    events: int
    stored: int
    logged: int
    sent: int
    most: int

    @property
    def is_within(self) -> bool:
        # A row for ClickHouse repeats `data` and `context`.
        return self.stored + self.logged <= self.most and self.sent <= 2 * self.most


def _event(visitor: str, data: Any = None, key: str = "Page View", **members: Any) -> dict[str, Any]:
    return {"key": key, "anonymousId": visitor, "data": data or {}, **members}


def _track(visitor: str, data: Any = None, key: str = "Page View", **members: Any) -> Post:
    return Post(_json(_event(visitor, data, key, **members)))


def _with_data(value: bytes, name: bytes = b"a") -> Post:
    return Post(b'{"key":"Page View","anonymousId":"t","data":{"%b":%b}}' % (name, value))


def _identify(visitor: str, user: str | None = None, **members: Any) -> Post:
    return Post(_json({"anonymousId": visitor, "userId": user, **members}), _IDENTIFY)


def _batch(events: Sequence[Any]) -> Post:
    return Post(_json({"events": events}), f"{BASE_PATH}/batch", len(events))


def _of_an_sdk(messages: Sequence[Any], context: Any = None) -> Post:
    return Post(_json({"context": context or {}, "batch": messages}), "/v1/batch", len(messages))


def _refund(order_id: str, **data: Any) -> dict[str, Any]:
    return _event("d", {"order_id": order_id, **data}, "Order Refunded")


def _campaign(number: int, length: int) -> dict[str, Any]:
    names = ("source", "medium", "name", "term", "content")
    return {"campaign": {name: f"{number}{name}".ljust(length, "x") for name in names}}


def _landings(visitor: str, count: int, length: int) -> Post:
    """So many arrivals, each with another campaign."""
    return _batch([_event(visitor, context=_campaign(number, length)) for number in range(count)])


def _repeated(value: bytes, size: int = 200_000) -> bytes:
    return b"[" + b",".join([value] * (size // (len(value) + 1))) + b"]"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _ways() -> Iterator[Way]:
    longest_user = "x" * 512
    pages = [{"type": "page", "anonymousId": f"a{number}"} for number in range(2500)]
    groups = [{"type": "group", "userId": "g", "groupId": f"{number}"} for number in range(50)]
    aliases = [{"type": "alias", "previousId": f"p{number}", "userId": f"p{number}"} for number in range(50)]
    sessions = [{"type": "page", "userId": number, "context": {"sessionId": number}} for number in range(1, 51)]
    refunds = [{"refund_id": f"{number}", "total": 0.01} for number in range(50)]
    bought = _track("d", {"order_id": "d-1", "total": 1000}, _ORDER)

    yield Way("the smallest event", [_track(f"l{number}") for number in range(50)])
    yield Way("a batch of the smallest events", [_batch([_event(f"b{number}") for number in range(1000)])])
    yield Way("an event with a message id", [_track(f"m{number}", messageId=f"m{number}") for number in range(50)])
    yield Way("an event with a campaign", [_track(f"c{number}", context=_campaign(number, 1)) for number in range(50)])
    yield Way("an event of a linked user, longest id", [_track("u") for _ in range(50)], [_identify("u", longest_user)])
    yield Way("text, unescaped", [_with_data(b'"%b"' % ("\u2028\x7fé😀" * 20_000).encode())])
    yield Way("text, escaped", [_with_data(b'"%b"' % (rb"\u0001\u00e9\ud83d\ude00" * 8_000))])
    yield Way("numbers such as 1e15", [_with_data(_repeated(b"1e15"))])
    yield Way("digits, each hashed by scrub", [_with_data(_repeated(b"1"), b"hashed")])
    yield Way("a trait of a visitor", [_identify(f"v{number}", traits={"a": 1}) for number in range(50)])
    yield Way("a trait of a user", [_identify(f"w{number}", f"w{number}", traits={"a": 1}) for number in range(50)])
    yield Way("a full profile, then its link", [_identify("f", traits={"a": "x" * 60_000}), _identify("f", "f")])
    traits = b'{"anonymousId":"s","traits":{"a":%b}}' % _repeated(b"1e15", 17_000)
    yield Way("a profile of 1e15, then its link", [Post(traits, _IDENTIFY), _identify("s", "s")])
    yield Way("a visitor that changes users", [_identify("r", f"r{number}") for number in range(9)])
    yield Way("SDK: context of 1.5 kB, 2,500 events", [_of_an_sdk(pages, {"a": "x" * 1500})])
    yield Way("SDK: context of 8 kB, 4 events", [_of_an_sdk(pages[:4], {"a": "x" * 8000})])
    yield Way("SDK: context of 1e15, 500 events", [_of_an_sdk(pages[:500], {"a": [1e15] * 90})])
    yield Way("SDK: groups", [_of_an_sdk(groups)])
    yield Way("SDK: aliases", [_of_an_sdk(aliases)])
    yield Way("SDK: numbers as users and sessions", [_of_an_sdk(sessions)])
    yield Way("a refused event", [_track("x", key=f"no key {number}") for number in range(50)])
    yield Way("a batch of refused events", [_batch([1] * 1000)])
    for name, length in (("long", 250), ("short", 1)):
        orders = [_event(name, {"order_id": f"{name} {number}", "total": 1}, _ORDER) for number in range(5)]
        yield Way(f"an order after 200 {name} touchpoints", [_batch(orders)], [_landings(name, 200, length)], orders=5)
    yield Way("an order with a long id", [_track("k", {"order_id": "k" * 200_000, "total": 1}, _ORDER)], orders=1)
    yield Way("a refund", [_batch([_refund("d-1", **each) for each in refunds])], [_landings("d", 1, 250), bought])
    yield Way("a refund before its order", [_batch([_refund("y", **each) for each in refunds])])
    yield Way("a dead letter", [_track("z", key=_UNDELIVERED) for _ in range(20)])
    yield Way("a large dead letter", [_track("z", {"a": "x" * 200_000}, _UNDELIVERED)])


WAYS: Mapping[str, Way] = {way.name: way for way in _ways()}


def _send(server: Server, file: Path, key: str, posts: Sequence[Post]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for post in posts:
        target = f"{post.path}?writeKey={key}" if post.path.startswith("/v1") else post.path
        connection.request("POST", target, post.body, {"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status not in {200, 400, 404}:
            sys.exit(f"{answer.status}: {text[:300]!r}")
    connection.close()
    while not all_processed(file):
        time.sleep(0.05)


def measure(server: Server, folder: Path, key: str, way: Way) -> Row:
    file, log = folder / "ingestd.db", folder / "log"
    _send(server, file, key, way.before)
    stored, logged, position = stored_bytes(file), log.stat().st_size, len(read_records(file))
    _send(server, file, key, way.posts)
    came, events = sum(len(post.body) for post in way.posts), sum(post.events for post in way.posts)
    sent = _sent(read_records(file)[position:])
    stored, logged = stored_bytes(file) - stored, log.stat().st_size - logged
    return Row(way.name, came, events, stored, logged, sent, A_BYTE * came + AN_EVENT * events + AN_ORDER * way.orders)


def _sent(records: Sequence[Record]) -> int:
    async def size() -> int:
        return sum([len(lines) async for lines in lines_of([row_of(each, _LAYOUT) for each in records])])

    return asyncio.run(size())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="ways whose names have this text")
    arguments = parser.parse_args()
    ways = [way for way in WAYS.values() if (arguments.only or "") in way.name]
    print(f"{'bytes':38}{'came':>9}{'events':>8}{'stored':>11}{'logged':>8}{'to a sink':>11}{'at most':>11}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="ingestd-hostile-") as name, webhook_server() as sink:
        sink.answer = lambda _: Reply(400, {}, b"")
        folder = Path(name)
        config = CONFIG + _MORE.format(port=sink.port, key=_UNDELIVERED)
        (folder / "ingestd.toml").write_text(config)
        key = create_key(folder)
        with ingestd(folder, config) as server:
            for way in ways:
                row = measure(server, folder, key, way)
                rows.append(row)
                print(
                    f"{row.way:38}{row.came:9,}{row.events:8,}{row.stored:11,}{row.logged:8,}{row.sent:11,}"
                    f"{row.most:11,}{'' if row.is_within else '  too much'}",
                    flush=True,
                )
    return 0 if all(row.is_within for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
