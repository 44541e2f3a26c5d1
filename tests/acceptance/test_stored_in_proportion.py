"""Whatever a stranger sends with the public key, the daemon stores in proportion to it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.hostile_storage import A_BYTE, AN_EVENT, AN_ORDER
from tests.support.daemon import BASE, Daemon, Shop
from tests.support.stored_bytes import all_processed, stored_bytes

Bodies = st.SearchStrategy[bytes]


class Sent(NamedTuple):
    path: str
    body: bytes
    events: int


class Place(NamedTuple):
    shop: Shop
    daemon: Daemon

    def send(self, requests: Sequence[Sent]) -> None:
        key = self.shop.public.id
        for sent in requests:
            headers = {"Authorization": f"Bearer {key}"}
            answer = self.daemon.request("POST", f"{sent.path}?writeKey={key}", sent.body, headers)
            assert answer.status in {200, 400, 413}, answer.body

    def stored(self) -> int:
        """The bytes that the file has when all consumers are done."""
        while not all_processed(self.shop.database):
            time.sleep(0.01)
        return stored_bytes(self.shop.database)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    shop = Shop(tmp_path_factory.mktemp("proportion"))
    with shop.serve() as daemon:
        yield Place(shop, daemon)


# Values that take the most room for their bytes, as JSON. Each body may come many times, with its number in place of @.
ATOMS = [
    b"1", b"1e15", b"-9e15", b"1e-5", b"null", b"true", b'""', b"[]", b"{}", b'"a"', b"18446744073709551616",
    '"\u2028\x7f"'.encode(), '"é😀"'.encode(), rb'"\u0001\n\\\""', b'{"a":1}', b"[[[]]]", rb'"\ud83d\ude00"',
]  # fmt: skip
TIMES = st.sampled_from([0, 1, 3, 30, 400])


def _object(atom: bytes, times: int) -> bytes:
    return b"{" + b",".join(b'"%x":%b' % (number, atom) for number in range(times)) + b"}"


def _list(atom: bytes, times: int) -> bytes:
    return b'{"a":[%b]}' % b",".join([atom] * times)


def _campaign(text: str, length: int) -> bytes:
    context = {"campaign": {"source": text * length, "name": "@"}, "page": {"url": f"?gclid={text}", "referrer": text}}
    return json.dumps(context).encode()


def _id(text: str, length: int) -> bytes:
    return json.dumps(text * length).encode()


OBJECTS = st.builds(_list, st.sampled_from(ATOMS), TIMES) | st.builds(_object, st.sampled_from(ATOMS), TIMES)
TEXTS = st.sampled_from(["@", "é", "\u2028", "\x01", "0", "undefined"])
CONTEXTS = OBJECTS | st.builds(_campaign, TEXTS, st.sampled_from([1, 300]))
IDS = st.builds(_id, TEXTS, st.sampled_from([1, 7, 128]))
USERS = st.builds(_id, TEXTS, st.sampled_from([1, 512, 600]))


def _members(required: Mapping[bytes, st.SearchStrategy[bytes]], **optional: st.SearchStrategy[bytes]) -> Bodies:
    """The body of a JSON object with these members."""
    members = st.fixed_dictionaries({**required}, optional={name.encode(): each for name, each in optional.items()})
    return members.map(lambda each: b"{" + b",".join(b'"%b":%b' % member for member in each.items()) + b"}")


REST = {"userId": USERS, "dispatchId": IDS, "messageId": IDS, "context": CONTEXTS, "extra": IDS}
EVENT = _members({b"key": st.just(b'"Page View"'), b"anonymousId": IDS, b"data": OBJECTS}, **REST)
IDENTIFY = _members({b"type": st.just(b'"identify"'), b"anonymousId": IDS, b"traits": OBJECTS}, **REST)
MESSAGE = st.one_of([
    _members({b"type": st.just(type_), b"event": st.just(b'"Cart Viewed"'), b"userId": IDS, b"groupId": IDS},
        anonymousId=IDS, previousId=IDS, properties=OBJECTS, traits=OBJECTS, context=CONTEXTS)
    | st.just(b'{"type":%b,"event":"Cart Viewed","userId":"@","groupId":"@"}' % type_)
    for type_ in (b'"track"', b'"screen"', b'"identify"', b'"group"', b'"alias"')
])  # fmt: skip


def _array(bodies: Bodies) -> st.SearchStrategy[tuple[bytes, int]]:
    """The members of a JSON array, and their number."""
    many = st.builds(
        lambda both, times: both * times, st.lists(bodies, min_size=1, max_size=2), st.sampled_from([1, 9, 300])
    )
    return many.map(lambda all_: (b",".join(each.replace(b"@", b"%d" % n) for n, each in enumerate(all_)), len(all_)))


REQUESTS = st.one_of(
    EVENT.map(lambda body: Sent(f"{BASE}/track", body, 1)),
    IDENTIFY.map(lambda body: Sent(f"{BASE}/identify/public", body, 1)),
    _array(EVENT | IDENTIFY).map(lambda all_: Sent(f"{BASE}/batch", b'{"events":[%b]}' % all_[0], all_[1])),
    st.builds(
        lambda all_, context: Sent("/v1/batch", b'{"context":%b,"batch":[%b]}' % (context, all_[0]), all_[1]),
        _array(MESSAGE), CONTEXTS | st.builds(_list, st.sampled_from(ATOMS), st.sampled_from([200, 1500])),
    ),
)  # fmt: skip


_visitors = count()
KEYS = st.lists(st.sampled_from(["Order Completed", "Order Refunded", "Order Cancelled"]), min_size=1, max_size=4)


@pytest.mark.logs("came before its order", "sent again with another value")
@given(
    text=TEXTS, length=st.sampled_from([1, 250]), arrivals=st.sampled_from([0, 1, 200]), keys=KEYS,
    orders=st.sampled_from([1, 9]), long=st.sampled_from([1, 20]),
)  # fmt: skip
def test_an_attributed_order_adds_at_most_64_kib(
    place: Place, text: str, length: int, arrivals: int, keys: Sequence[str], orders: int, long: int
) -> None:
    visitor = f"buyer {next(_visitors)}"
    names = ("source", "medium", "name", "term", "content")
    contexts = [{"campaign": dict.fromkeys(names, f"{number}{text * length}")} for number in range(arrivals)]
    landings = [{"key": "Page View", "anonymousId": visitor, "data": {}, "context": each} for each in contexts]
    bought = [
        {"key": key, "anonymousId": visitor, "data": {"order_id": f"{visitor} {number}" * long, "total": each + 1}}
        for number in range(orders)
        for each, key in enumerate(keys)
    ]
    if landings:
        place.send([_own_batch(landings)])
    before = place.stored()
    sent = _own_batch(bought)
    place.send([sent])
    most = A_BYTE * len(sent.body) + AN_EVENT * sent.events + AN_ORDER * orders * ("Order Completed" in keys)
    assert place.stored() - before <= most


def _own_batch(events: Sequence[object]) -> Sent:
    return Sent(f"{BASE}/batch", json.dumps({"events": events}).encode(), len(events))


def test_a_profile_whose_numbers_become_longer_is_stored_in_proportion_even_if_it_is_linked(place: Place) -> None:
    traits = b'{"anonymousId":"long numbers","traits":{"a":[%b1]}}' % (b"1e15," * 3300)
    link = b'{"anonymousId":"long numbers","userId":"of long numbers"}'
    before = place.stored()
    place.send([Sent(f"{BASE}/identify/public", body, 1) for body in (traits, link)])
    assert place.stored() - before <= A_BYTE * (len(traits) + len(link)) + 2 * AN_EVENT


COPIED = Sent(
    "/v1/batch",
    b'{"context":{"a":[%b]},"batch":[%b]}' % (b"1e15," * 999 + b"1", b'{"type":"page","userId":"u"},' * 99 + b"{}"),
    100,
)
LONGEST_USER = b'{"anonymousId":"v","userId":%b}' % _id("\x01", 512)
SWOLLEN = b'{"anonymousId":"v","traits":{"a":[%b]}}' % (b"1e15," * 1500 + b"1")


@example([COPIED])
@example([Sent(f"{BASE}/identify/public", SWOLLEN, 1), Sent(f"{BASE}/identify/public", LONGEST_USER, 1)])
@example([Sent(f"{BASE}/track", b'{"key":"Page View","anonymousId":"v","data":{}}', 1)] * 9)
@given(st.lists(REQUESTS, min_size=1, max_size=3))
def test_stored_bytes_have_a_bound_for_each_byte_and_event_that_came(place: Place, requests: list[Sent]) -> None:
    before = place.stored()
    place.send(requests)
    most = sum(A_BYTE * len(sent.body) + AN_EVENT * sent.events for sent in requests)
    assert place.stored() - before <= most
