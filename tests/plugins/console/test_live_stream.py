"""The stream of live events: its sample, its bounds, its filter, and the place of a viewer in it."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest, SchemaViolation
from ingestd.api.events import Endpoint
from ingestd.api.outcomes import Outcome
from ingestd.pipeline.request_events import Sent
from ingestd.plugins.console.live.arrivals import MOST_BYTES, Arrival, ArrivalFilter, Source
from ingestd.plugins.console.live.stream import RATE, Stream

SOURCE = Source(Endpoint.TRACK, "id", 0, batch=False)
REFUSED = BadRequest("no")


def row(number: int, arrival: Arrival) -> bytes:
    return b"%d %b" % (number, arrival.outcome.value.encode())


def stream(wanted: ArrivalFilter | None = None) -> Stream:
    return Stream(wanted or ArrivalFilter(), row, 0.0, iter(()))


def record(visitor: str, **members: Any) -> bytes:
    return msgspec.json.encode({"anonymousId": visitor, **members})


def offer(to: Stream, *, refused: bool = False, visitor: str = "ann", size: int = 0) -> None:
    if refused:
        to.offer(Arrival(SOURCE, None, Endpoint.TRACK, "", Outcome.INVALID, None, REFUSED, Sent("", visitor, None)))
    else:
        body = record(visitor, data="x" * size)
        to.offer(Arrival(SOURCE, None, Endpoint.TRACK, "Cart Viewed", Outcome.ACCEPTED, body))


def numbers(of: Stream) -> list[int]:
    return [entry.number for entry in of.entries()]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.floats(0, 3)), max_size=12))
def test_rows_a_second_are_bounded_and_numbers_tell_how_many_were_left_out(turns: list[tuple[int, int, float]]) -> None:
    live, now, shown, came = stream(), 0.0, 0, 0
    for accepted, refused, seconds in turns:
        for index in range(max(accepted, refused)):
            for wanted, is_refused in ((accepted, False), (refused, True)):
                if index < wanted:
                    offer(live, refused=is_refused)
        now += seconds
        before = live.came and max(numbers(live), default=0)
        live.take_sample(now)
        new = [number for number in numbers(live) if number > before]
        came += accepted + refused
        shown += len(new)
        assert live.came == came
        assert numbers(live) == sorted({*numbers(live)})
        assert max(numbers(live), default=0) <= came
        assert len(numbers(live)) <= 300
        assert bool(new) == bool(accepted + refused) or shown >= 100  # nothing is left out while there are few
    assert shown <= 2 * (100 + RATE * now)


def test_few_events_are_all_shown() -> None:
    live = stream()
    for turn in range(50):
        for _ in range(5):
            offer(live)
        live.take_sample(turn / 4)
    assert numbers(live) == [*range(1, 251)]


def test_a_flood_does_not_displace_refused_events() -> None:
    live = stream()
    for turn in range(1, 20):
        for _ in range(500):
            offer(live)
        offer(live, refused=True)
        live.take_sample(turn / 4)
    assert sum(entry.arrival.refused is not None for entry in live.entries()) == 19


def test_each_event_of_a_flood_has_the_same_chance() -> None:
    live = stream()
    for turn in range(1, 41):
        for _ in range(1000):
            offer(live)
        live.take_sample(turn / 4)
    places = [(number - 1) % 1000 for number in numbers(live)]
    assert 200 < sum(places) / len(places) < 800


def test_a_large_record_is_not_kept() -> None:
    live = stream()
    offer(live, size=MOST_BYTES)
    live.take_sample(1.0)
    (entry,) = live.entries()
    assert entry.arrival.record is None
    assert entry.arrival.ids.anonymous_id == "ann"


def test_a_refused_event_keeps_nothing_of_its_request() -> None:
    class Body:
        """A body, which the frames of the traceback refer to."""

    def refuse() -> BadRequest:
        body = Body()
        bodies.append(weakref.ref(body))
        try:
            try:
                raise ValueError(body)
            except ValueError:
                raise BadRequest("/a: no", code="invalid_data", errors=[SchemaViolation("/a", "no")]) from None
        except BadRequest as refused:
            return refused

    bodies: list[weakref.ref[Body]] = []
    live = stream()
    live.offer(Arrival(SOURCE, None, Endpoint.TRACK, "", Outcome.INVALID, None, refuse()))
    gc.collect()
    assert [body() for body in bodies] == [None]
    live.take_sample(1.0)
    (entry,) = live.entries()
    kept = entry.arrival.refused
    assert isinstance(kept, BadRequest)
    assert (str(kept), kept.detail, kept.code, kept.errors) == ("/a: no", "/a: no", "invalid_data", [("/a", "no")])


def test_the_bytes_of_all_rows_are_bounded() -> None:
    live = stream()
    for turn in range(100):
        for _ in range(5):
            offer(live, size=MOST_BYTES - 200)
        live.take_sample(turn / 4)
    assert 30 < len(numbers(live)) < 100
    assert numbers(live)[-1] == 500


texts = st.sampled_from(["ann", "bob", "é", '"', "null", "ann\\"])


@given(
    texts,
    st.lists(st.tuples(texts, st.none() | texts, texts, st.sampled_from([*Outcome]), st.booleans()), max_size=20),
)
def test_a_filter_selects_exactly_the_events_of_a_person(
    person: str, events: list[tuple[str, str | None, str, Outcome, bool]]
) -> None:
    live, everything, expected = stream(ArrivalFilter(person=person)), stream(), []
    for visitor, user, other, outcome, stored in events:
        body = json.dumps({"anonymousId": visitor, "userId": user, "data": {"anonymousId": other}}, ensure_ascii=False)
        compact = msgspec.json.encode(json.loads(body)) if stored else None
        for each in (live, everything):
            sent = Sent() if stored else Sent("", visitor, user)
            each.offer(Arrival(SOURCE, None, Endpoint.TRACK, "", outcome, compact, None, sent))
        if person in (visitor, user):
            expected.append((visitor, user or ""))
    for each in (live, everything):
        each.take_sample(0.1)
    later = Stream(ArrivalFilter(person=person), row, 0.0, everything.entries())
    for each in (live, later):
        ids = [entry.arrival.ids for entry in each.entries()]
        assert [(found.anonymous_id, found.user_id) for found in ids] == expected


def test_a_filter_selects_by_key_kind_and_outcome() -> None:
    cases: list[tuple[ArrivalFilter, Endpoint, str, Outcome, bool]] = [
        (ArrivalFilter(key="Cart Viewed"), Endpoint.TRACK, "Cart Viewed", Outcome.ACCEPTED, True),
        (ArrivalFilter(key="Cart Viewed"), Endpoint.TRACK, "", Outcome.INVALID, False),
        (ArrivalFilter(key="", identifies=False), Endpoint.TRACK, "", Outcome.UNKNOWN_KEY, True),
        (ArrivalFilter(key="", identifies=False), Endpoint.IDENTIFY, "", Outcome.ACCEPTED, False),
        (ArrivalFilter(identifies=True), Endpoint.IDENTIFY, "", Outcome.ACCEPTED, True),
        (ArrivalFilter(frozenset([Outcome.INVALID])), Endpoint.TRACK, "", Outcome.INVALID, True),
        (ArrivalFilter(frozenset([Outcome.INVALID])), Endpoint.TRACK, "", Outcome.LIMITED, False),
    ]
    for wanted, endpoint, key, outcome, selected in cases:
        live = stream(wanted)
        live.offer(Arrival(SOURCE, None, endpoint, key, outcome))
        assert live.came == selected
