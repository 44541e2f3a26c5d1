"""Batches wait in a room of their own, in which no key and no address takes the room of others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import Unavailable
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.scheduling.room import Backpressure, NoRoom, Place

MIB = 1 << 20
BUFFERED = 24 * MIB


def place(backpressure: Backpressure, address: str = "", *, partition: int = 0) -> Place:
    return Place(backpressure, Request(Endpoint.TRACK, {}, b"", received_at=0, peer=address), lambda _: partition)


def sender(key: str, *, signed: bool = False) -> Principal:
    return Principal("shop", key, signed=signed)


def fill(
    backpressure: Backpressure, size: int, who: list[tuple[str, Principal | None]], *, partition: int = 0
) -> list[Place]:
    """Let these senders, by address and key, take places in turn until none of them finds room."""
    taken = []
    while who:
        for address, principal in [*who]:
            one = place(backpressure, address, partition=partition)
            try:
                one.take(size, principal)
            except NoRoom:
                one.leave()
                who.remove((address, principal))
            else:
                taken.append(one)
    return taken


SENDERS = st.lists(
    st.tuples(
        st.integers(1, 4 * MIB),
        st.integers(0, 2500),
        st.sampled_from(["", "192.0.2.1", "192.0.2.2", "2001:db8::1"]),
        st.sampled_from([None, "a", "b", "c"]),
        st.booleans(),
    ),
    max_size=60,
)


@given(SENDERS)
def test_whatever_batches_wait_single_events_and_signed_requests_find_room(senders: list[Any]) -> None:
    backpressure = Backpressure(100, BUFFERED)
    taken, held = [], 0
    for size, events, address, key, leaves in senders:
        one = place(backpressure, address)
        try:
            one.take(size, None if key is None else sender(key), events=events)
        except NoRoom:
            one.leave()
            continue
        if leaves:
            one.leave()
        else:
            taken.append(one)
            held += size + 64 * events
    assert held <= BUFFERED * 7 // 16 + BUFFERED // 6  # requests of usual size can arrive
    for _ in range(100):
        backpressure.acquire()
    signed = place(backpressure, "192.0.2.1")
    signed.take(4 * MIB, sender("server", signed=True), events=1000)
    signed.leave()
    for one in taken:
        one.leave()
    assert (backpressure.room.batches, backpressure.waiting) == (0, 100)
    first = place(backpressure)
    first.take(4 * MIB, sender("a"), events=1000)


def test_public_events_leave_room_for_signed_ones() -> None:
    backpressure = Backpressure(100)
    for _ in range(100):
        backpressure.acquire()
    with pytest.raises(Unavailable):
        backpressure.acquire()
    for _ in range(26):
        backpressure.acquire(signed=True)
    with pytest.raises(Unavailable):
        backpressure.acquire(signed=True)


def test_one_key_from_many_addresses_leaves_room_for_other_keys() -> None:
    backpressure = Backpressure(100, BUFFERED)
    taken = fill(backpressure, 100_000, [(f"192.0.2.{number}", sender("a")) for number in range(64)])
    assert len(taken) == BUFFERED * 3 // 8 // 100_000
    with pytest.raises(NoRoom) as raised:
        place(backpressure, "198.51.100.1").take(100_000, sender("a"))
    assert raised.value.by == "key"
    place(backpressure, "198.51.100.1").take(4 * MIB, sender("b"))


def test_one_address_with_many_keys_leaves_room_for_other_addresses() -> None:
    backpressure = Backpressure(100, BUFFERED)
    taken = fill(backpressure, 100_000, [(f"2001:db8::{number}", sender(f"key {number % 32}")) for number in range(64)])
    assert len(taken) == BUFFERED * 5 // 16 // 100_000
    with pytest.raises(NoRoom) as raised:
        place(backpressure, "2001:db8::ffff").take(100_000, sender("another"))
    assert raised.value.by == "address"
    place(backpressure, "2001:db8:0:1::1").take(4 * MIB, sender("another"))


def test_a_partition_that_hangs_leaves_others_their_part_of_the_room() -> None:
    hanging = Backpressure(100, BUFFERED)
    Backpressure(beside=hanging)
    fill(hanging, 100_000, [("", sender(f"key {number}")) for number in range(20)])
    with pytest.raises(NoRoom) as raised:
        place(hanging).take(100_000, sender("key 1"))
    assert raised.value.by == "all"
    taken = fill(hanging, 100_000, [("", sender("well")), ("", sender("too"))], partition=1)
    assert len(taken) == BUFFERED * 7 // 32 // 100_000


def test_a_smaller_limit_applies_to_batches_that_come_later() -> None:
    backpressure = Backpressure(100, BUFFERED)
    waits = place(backpressure)
    waits.take(MIB, sender("a"))
    backpressure.room.apply_options(1, MIB)
    with pytest.raises(NoRoom):
        place(backpressure).take(1, sender("a"))
    waits.leave()
    place(backpressure).take(1, sender("a"))
