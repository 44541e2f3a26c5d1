"""Batches for a failing sink: no record is lost or out of order, and only faulty records are given up."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api.errors import SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Duration, Size
from ingestd.api.sink import Sink
from ingestd.delivery.batch_writer import BatchWriter, GivenUp
from ingestd.delivery.evidence import Evidence
from ingestd.delivery.options import BatchOptions, RetryOptions, SinkOptions
from ingestd.delivery.shared_sink import within
from tests.support.journals import until

Mood = Literal["up", "down", "hangs", "answer lost"]
"""The behaviour of a sink in one write. With "answer lost" the sink takes the batch, but the write fails."""

_UP: list[Mood] = ["up"]
_DOWN: list[Mood] = ["down"]

NEWCOMERS = 100_000  # positions of records that come while others wait


def record(position: int, visitor: int = 0, size: int = 0) -> Record:
    value = {"id": str(position), "tenant": "shop", "anonymousId": f"visitor-{visitor}", "fill": "x" * size}
    return Record("event", 0, json.dumps(value).encode(), position)


def options(*, most: int = 100, most_bytes: int = 1 << 20, attempts: int = 2, timeout: float = 30.0) -> SinkOptions:
    return SinkOptions(
        type="moody",
        timeout=Duration(timeout),
        batch=BatchOptions(max_events=most, max_bytes=Size(most_bytes)),
        retry=RetryOptions(attempts=attempts),
    )


@dataclass(frozen=True)
class Written:
    positions: tuple[int, ...]
    taken: bool


class Moody(Sink):
    """A sink that rejects the records in `refused`. A batch with a record in `poison` fails as a whole."""

    def __init__(
        self,
        poison: Collection[int] = (),
        refused: Collection[int] = (),
        moods: Sequence[Mood] = (),
        tear: bool = False,
    ) -> None:
        super().__init__("moody", None)
        self.poison = poison
        self.refused = refused
        self.moods = list(moods)
        self.tear = tear
        """Whether a failing write keeps the records before the poison record."""
        self.writes: list[Written] = []
        self.has: list[int] = []

    async def write(self, batch: Sequence[Record]) -> None:
        positions = tuple(each.position for each in batch)
        self.writes.append(Written(positions, taken=False))
        mood = self.moods.pop(0) if self.moods else "up"
        if mood == "down":
            raise ConnectionError("down")
        if mood == "hangs":
            await asyncio.Event().wait()
        refused = {index: f"no {position}" for index, position in enumerate(positions) if position in self.refused}
        if refused:
            raise SinkReject(refused)
        for index, position in enumerate(positions):
            if position in self.poison:
                self.has += positions[:index] if self.tear else ()
                raise KeyError("price")
        self.has += positions
        if mood == "answer lost":
            raise ConnectionError("no answer")
        self.writes[-1] = Written(positions, taken=True)


@dataclass
class Delivery:
    """Calls the writer like its consumer: failed records come again. With `newcomers` each failure adds a visitor."""

    sink: Moody
    options: SinkOptions
    in_hand: int = 1000
    newcomers: bool = False
    given_up: dict[int, GivenUp] = field(default_factory=dict)
    given_up_at: list[int] = field(default_factory=list)
    failed_at: list[int] = field(default_factory=list)
    """The number of writes before each failure."""

    @property
    def failures(self) -> int:
        return len(self.failed_at)

    def __post_init__(self) -> None:
        self.evidence = Evidence()
        self.writer = BatchWriter(self.sink, self.options, self.evidence)

    async def deliver(self, records: Sequence[Record], patience: int = 2000) -> None:
        """Deliver all records, or stop after `patience` failures. Newcomers are delivered only as probes."""
        ahead = records
        while records:
            hand = records[: self.in_hand]
            try:
                written = await self.writer.write(hand)
            except Exception:  # noqa: BLE001 - a sink may raise anything
                self.failed_at.append(len(self.sink.writes))
                if self.failures >= patience:
                    return
                if self.newcomers:
                    ahead = [*ahead, record(NEWCOMERS + self.failures, NEWCOMERS + self.failures)]
                if self.evidence.wanted:
                    self.evidence.ahead, self.evidence.wanted = ahead, False
                continue
            assert 1 <= written.done <= len(hand)
            self.given_up_at += [len(self.sink.writes)] * len(written.given_up)
            self.given_up |= {hand[index].position: given for index, given in written.given_up.items()}
            records = records[written.done :]


def deliver(sink: Moody, records: Sequence[Record], *, newcomers: bool = False, **kw: Any) -> Delivery:
    delivery = Delivery(sink, options(**kw), newcomers=newcomers)
    asyncio.run(delivery.deliver(records))
    return delivery


def assert_in_order(sink: Moody, records: Sequence[Record]) -> None:
    """The first copies of each visitor's records came in order."""
    visitors = {each.position: each.decode()["anonymousId"] for each in records}
    newest: dict[str, int] = {}
    for position in dict.fromkeys(each for each in sink.has if each in visitors):
        assert newest.get(visitors[position], 0) < position
        newest[visitors[position]] = position


def assert_deserved(delivery: Delivery, position: int, attempts: int) -> None:
    """The record failed often enough, and twice alone. Between these two the sink took a record that was new to it."""
    at = dict(zip(delivery.given_up, delivery.given_up_at, strict=True))[position]
    writes = delivery.sink.writes[:at]
    failed = [at for at, write in enumerate(writes) if position in write.positions and not write.taken]
    assert len(failed) > attempts
    *_, before, last = (at for at in failed if writes[at].positions == (position,))
    had = {each for write in writes[:before] if write.taken for each in write.positions}
    assert any(write.taken and not had & {*write.positions} for write in writes[before:last])


moods = st.lists(
    st.tuples(st.sampled_from(["up", "up", "down", "down", "answer lost"]), st.integers(1, 12)), max_size=12
).map(lambda runs: [mood for mood, count in runs for _ in range(count)])


@st.composite
def journals(draw: st.DrawFn) -> tuple[list[Record], set[int], set[int]]:
    """Records of one or many visitors, the positions of poison records, and the positions of rejected records."""
    count = draw(st.integers(1, 60))
    visitors = draw(st.integers(1, 8))
    kinds = draw(st.lists(st.sampled_from("ggggggpr"), min_size=count, max_size=count))
    records = [
        record(number, draw(st.integers(1, visitors)), draw(st.sampled_from([0, 0, 500])))
        for number in range(1, count + 1)
    ]
    chosen = {each.position: kind for each, kind in zip(records, kinds, strict=True)}
    return records, {at for at in chosen if chosen[at] == "p"}, {at for at in chosen if chosen[at] == "r"}


@given(
    journal=journals(),
    moods=moods,
    tear=st.booleans(),
    most=st.integers(1, 70),
    most_bytes=st.sampled_from([1, 700, 3000, 1 << 20]),
    attempts=st.integers(1, 5),
    in_hand=st.integers(1, 70),
)
def test_every_record_is_taken_in_order_or_given_up_for_its_own_fault(
    journal: tuple[list[Record], set[int], set[int]],
    moods: list[Mood],
    tear: bool,
    most: int,
    most_bytes: int,
    attempts: int,
    in_hand: int,
) -> None:
    records, poison, refused = journal
    sink = Moody(poison, refused, moods, tear)
    delivery = Delivery(sink, options(most=most, most_bytes=most_bytes, attempts=attempts), in_hand, newcomers=True)
    asyncio.run(delivery.deliver(records))
    positions = {each.position for each in records}
    assert positions <= {*sink.has} | {*delivery.given_up}
    assert not {*sink.has} & (poison | refused)
    assert_in_order(sink, records)
    assert poison | refused <= {*delivery.given_up}
    for position, given_up in delivery.given_up.items():
        if position in refused:
            assert given_up.reason == f"no {position}" or given_up.reason.startswith("ConnectionError")
        else:
            assert_deserved(delivery, position, attempts)
            assert given_up.reason == "KeyError: 'price'" or given_up.reason.startswith("ConnectionError")
    if set(moods) <= {"up"}:
        assert {*delivery.given_up} == poison | refused
        assert len(sink.writes) <= most_writes(len(records), poison, refused, most, most_bytes, attempts, in_hand)


def most_writes(
    count: int, poison: set[int], refused: set[int], most: int, most_bytes: int, attempts: int, in_hand: int
) -> float:
    size = min(most, count, in_hand)
    batches = count if most_bytes == 1 else 2 * count / min(size, max(1, most_bytes // 700)) + 1
    steps = math.log2(size) + 1
    return batches + len(refused) * 2 + len(poison) * (attempts + 8 * steps + 8)


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("bad", [{1}, {499}, {250, 251}, {3, 99, 300, 444}])
def test_a_few_poison_records_of_a_full_batch_cost_a_few_writes(bad: set[int], attempts: int) -> None:
    records = [record(position, position % 50) for position in range(1, 501)]
    sink = Moody(bad)
    delivery = deliver(sink, records, most=500, attempts=attempts)
    assert {*delivery.given_up} == bad
    assert [each for each in dict.fromkeys(sink.has) if each not in bad]
    assert {*sink.has} == {*range(1, 501)} - bad
    assert len(sink.writes) <= len(bad) * (attempts + 4 * math.log2(500))
    assert delivery.failures <= len(bad) * attempts  # only these wait; the search for the poison record does not
    for position, given_up in delivery.given_up.items():
        assert_deserved(delivery, position, attempts)
        failed = [write for write in sink.writes if position in write.positions]
        assert given_up.reason == "KeyError: 'price'"
        assert len(failed) - 1 <= given_up.attempts <= len(failed)  # one may have been a probe for another


@given(
    length=st.integers(1, 300),
    kind=st.sampled_from(["down", "hangs"]),
    begins=st.integers(0, 20),
    visitors=st.integers(1, 5),
    poison=st.sets(st.integers(1, 40), max_size=3),
    attempts=st.integers(1, 4),
    most=st.integers(1, 50),
)
@example(length=2, kind="down", begins=16, visitors=2, poison={3, 4}, attempts=2, most=12)
def test_an_outage_of_any_length_makes_no_dead_letters(
    length: int, kind: Mood, begins: int, visitors: int, poison: set[int], attempts: int, most: int
) -> None:
    """During the outage not even poison records become dead letters."""
    records = [record(position, position % visitors) for position in range(1, 41)]
    sink = Moody(poison, moods=[*_UP * begins, *[kind] * length])
    delivery = Delivery(sink, options(most=most, attempts=attempts, timeout=0.0005))
    delivery.newcomers = True
    asyncio.run(delivery.deliver(records))
    assert {*delivery.given_up} == poison
    assert {*sink.has} >= {*range(1, 41)} - poison
    assert_in_order(sink, records)
    during = [at for at in delivery.failed_at if begins < at <= begins + length]
    given_up_during = [at for at in delivery.given_up_at if begins < at <= begins + length]
    # If the sink has just taken another record, the first failing write may give up one record, or a half of the batch
    # that is tried at once. After the first pause no record is given up.
    assert len(given_up_during) <= 1
    assert not [at for at in given_up_during if during and at > during[0]]
    # Between pauses there are few writes: one, its halves once, and two to find out whether the sink takes others.
    assert all(later - earlier <= 3 + math.log2(most) for earlier, later in pairwise(during))
    assert sum(later - earlier > 3 for earlier, later in pairwise(during)) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_recovery_makes_no_dead_letters(seed: int) -> None:
    """During the recovery three in ten writes fail."""
    chance = random.Random(seed)
    moods: list[Mood] = ["down" if chance.random() < 0.3 else "up" for _ in range(3000)]
    sink = Moody(moods=[*_DOWN * 40, *moods])
    records = [record(position, position % 30) for position in range(1, 501)]
    delivery = deliver(sink, records, most=100, attempts=8)
    assert delivery.given_up == {}
    assert {*sink.has} == {*range(1, 501)}


def test_a_poison_record_in_front_waits_until_the_sink_takes_another() -> None:
    """There is no limit of time. One other record is enough."""
    alone = [record(1, visitor=1), record(2, visitor=1)]

    async def scenario() -> None:
        sink = Moody({1})
        delivery = Delivery(sink, options(attempts=2))
        await delivery.deliver(alone, patience=50)
        assert (delivery.failures, delivery.given_up, sink.has) == (50, {}, [])
        assert delivery.evidence.wanted
        await delivery.deliver([*alone, record(3, visitor=2)])  # a record of another visitor
        assert [*delivery.given_up] == [1]
        assert [*dict.fromkeys(sink.has)] == [3, 2]

    asyncio.run(scenario())


def test_a_record_that_the_sink_had_before_proves_nothing() -> None:
    """The sink takes records that it had before, and refuses new ones. That is the sink's fault, not a record's."""

    class Full(Moody):
        room = 3

        async def write(self, batch: Sequence[Record]) -> None:
            new = [each for each in batch if each.position not in self.has]
            if len(new) > self.room:
                self.writes.append(Written(tuple(each.position for each in batch), taken=False))
                raise OSError("no room")
            self.room -= len(new)
            await super().write(batch)

    async def scenario() -> None:
        sink = Full()
        records = [record(position, position) for position in range(1, 40)]
        delivery = Delivery(sink, options(attempts=2, most=3), newcomers=True)
        await delivery.deliver(records[:3])
        for room in (0, 1, 0, 0, 1, 2, 0):
            sink.room += room
            await delivery.deliver(records[3:], patience=delivery.failures + 30)
        assert delivery.given_up == {}
        sink.room = 1000
        await delivery.deliver(records[3:])
        assert delivery.given_up == {}
        assert {*sink.has} >= {*range(1, 40)}

    asyncio.run(scenario())


@pytest.mark.parametrize("attempts", [1, 2, 5])
@pytest.mark.parametrize("every", [4, 5, 7, 10, 13])
def test_a_sink_that_takes_a_record_now_and_then_makes_no_dead_letters(every: int, attempts: int) -> None:
    """The sink is full again when a failed record is tried again, and it refuses other records too."""
    sink = Moody(moods=[*_DOWN * attempts, *([*_UP, *_DOWN * (every - 1)] * 60)])
    records = [record(position, position) for position in range(1, 31)]
    delivery = deliver(sink, records, most=30, attempts=attempts)
    assert delivery.given_up == {}
    assert {*sink.has} == {*range(1, 31)}


def test_a_record_proves_once_that_the_sink_takes_others() -> None:
    """Each record to be given up needs another taken record as evidence. Each taken record counts once."""

    async def scenario() -> None:
        sink = Moody({1, 2})
        delivery = Delivery(sink, options(attempts=2))
        records = [record(1, 1), record(2, 1), record(3, 3)]
        await delivery.deliver(records, patience=30)
        assert [*delivery.given_up] == [1]
        await delivery.deliver(records[1:], patience=30)
        assert [*delivery.given_up] == [1]
        await delivery.deliver([*records[1:], record(4, 3)])
        assert [*delivery.given_up] == [1, 2]
        assert [*dict.fromkeys(sink.has)] == [3, 4]

    asyncio.run(scenario())


def test_many_poison_records_are_found_by_one_probe_at_a_time() -> None:
    """A refused probe counts against the sink once. Otherwise each new record would look like the sink's recovery."""

    async def scenario() -> None:
        sink = Moody({1, 2})
        delivery = Delivery(sink, options(attempts=2))
        pending = [record(1, 1), record(2, 2)]
        for position in range(3, 12):
            pending = [each for each in pending if each.position not in delivery.given_up]
            pending.append(record(position, position))
            await delivery.deliver(pending, patience=delivery.failures + 10)
            if len(delivery.given_up) == 2:
                break
        assert [*delivery.given_up] == [1, 2]
        assert len(sink.has) < 8

    asyncio.run(scenario())


def test_a_sink_with_room_for_a_part_of_a_batch_gets_that_part() -> None:
    class Small(Moody):
        async def write(self, batch: Sequence[Record]) -> None:
            if len(self.has) + len(batch) > 9:
                raise SinkRetry("no room")
            await super().write(batch)

    sink = Small()
    delivery = Delivery(sink, options(attempts=2, most=16))
    asyncio.run(delivery.deliver([record(position) for position in range(1, 17)], patience=50))
    assert sink.has == [*range(1, 10)]
    assert delivery.given_up == {}


@pytest.mark.parametrize("first", [0, 1, 2, 5])
def test_a_failure_of_the_sink_counts_against_no_record(first: int) -> None:
    """Not even if it happens with one record only, and the sink takes all others."""

    class Quota(Moody):
        async def write(self, batch: Sequence[Record]) -> None:
            if any(each.position == 2 for each in batch):
                self.writes.append(Written(tuple(each.position for each in batch), taken=False))
                if len(self.writes) > first:
                    raise SinkRetry("over the quota")
                raise OSError("no room")
            await super().write(batch)

    sink = Quota()
    delivery = Delivery(sink, options(attempts=3, most=1), newcomers=True)
    asyncio.run(delivery.deliver([record(1, 1), record(2, 2), record(3, 3)], patience=100))
    assert delivery.given_up == {}
    assert sink.has[0] == 1


@pytest.mark.parametrize("count", [2, 5, 30])
def test_poison_after_poison_is_found_before_any_record_is_taken(count: int) -> None:
    records = [record(position, visitor=position) for position in range(1, count + 2)]
    sink = Moody(set(range(1, count + 1)))
    delivery = deliver(sink, records, attempts=2, newcomers=True)
    assert [*delivery.given_up] == [*range(1, count + 1)]
    assert count + 1 in sink.has


def test_probes_never_overtake_a_record_of_their_visitor() -> None:
    """Record 1 is poison, record 2 fails for a while, and record 3 has the visitor of record 2."""

    class Late(Moody):
        async def write(self, batch: Sequence[Record]) -> None:
            if len(self.writes) < 8 and any(each.position == 2 for each in batch):
                self.writes.append(Written(tuple(each.position for each in batch), taken=False))
                raise ConnectionError("not now")
            await super().write(batch)

    records = [record(1, 1), record(2, 2), record(3, 2), record(4, 2)]
    sink = Late({1})
    delivery = deliver(sink, records, attempts=1)
    assert_in_order(sink, records)
    assert {*sink.has} | {*delivery.given_up} == {1, 2, 3, 4}


def test_failures_of_some_records_are_not_held_against_others() -> None:
    """The failed records may be gone: removed from the journal, or delivered by another daemon."""
    sink = Moody(moods=["up", "down", "down", "down", "up"])

    async def scenario() -> None:
        delivery = Delivery(sink, options(attempts=3))
        await delivery.deliver([record(1)])
        await delivery.deliver([record(2)], patience=2)
        assert sink.moods == ["down", "up"]
        await delivery.deliver([record(3), record(4)], patience=3)
        assert (len(sink.writes), sink.moods) == (4, ["up"])  # so there was no probe
        await delivery.deliver([record(3), record(4)])
        assert sink.has == [1, 3, 4]
        sink.poison = {5}
        await delivery.deliver([record(5)], patience=5)
        assert delivery.given_up == {}
        await delivery.deliver([record(5), record(6, 6)])
        assert [*delivery.given_up] == [5]

    asyncio.run(scenario())


def test_repeated_completed_records_cost_no_pauses() -> None:
    """The sink has taken the records, but the step could not be stored. So they come again."""
    sink = Moody({7})
    records = [record(position, position) for position in range(1, 11)]

    async def scenario() -> None:
        delivery = Delivery(sink, options(attempts=3))
        left: Sequence[Record] = records
        while 7 not in delivery.given_up:
            try:
                written = await delivery.writer.write(left)
            except KeyError:
                delivery.failed_at.append(len(sink.writes))
                continue
            if any(left[index].position == 7 for index in written.given_up):
                again = await delivery.writer.write(left)
                assert [left[index].position for index in again.given_up] == [7]
                delivery.given_up[7] = again.given_up[0]
                delivery.given_up_at.append(len(sink.writes))
            left = left[written.done :]
        assert delivery.failures == 2
        assert_deserved(delivery, 7, 3)

    asyncio.run(scenario())


def test_batches_stay_within_their_limits() -> None:
    sink = Moody()
    sizes = [10, 400, 10, 10, 3000, 10, 10, 10, 10]
    records = [record(number, size=size) for number, size in enumerate(sizes, 1)]
    deliver(sink, records, most=4, most_bytes=600)
    assert [write.positions for write in sink.writes] == [(1, 2), (3, 4), (5,), (6, 7, 8, 9)]
    assert len(records[0].body) * 4 < 600 < len(records[0].body) + len(records[1].body) + len(records[2].body)


def test_a_failed_batch_is_repeated_without_newer_records() -> None:
    sink = Moody(moods=["down", "down"])

    async def scenario() -> None:
        delivery = Delivery(sink, options(attempts=5))
        await delivery.deliver([record(1), record(2)], patience=1)
        await delivery.deliver([record(1, 1), record(2, 2), record(3, 3)])

    asyncio.run(scenario())
    assert [write.positions for write in sink.writes] == [(1, 2), (1, 2), (1, 2), (3,)]


@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        ({}, "its SinkReject names no record of a batch of 3"),
        ({3: "x"}, "its SinkReject names record 3 of a batch of 3"),
        ({-1: "x"}, "its SinkReject names record -1 of a batch of 3"),
        ({0: "x", 10**9: "y"}, "its SinkReject names record 1000000000 of a batch of 3"),
        ({"0": "x"}, "its SinkReject names record '0' of a batch of 3"),
        ({1: "x", "0": "y", None: "z"}, "its SinkReject names record '0' of a batch of 3"),
        ({True: "x"}, "its SinkReject names record True of a batch of 3"),
        ({1.0: "x"}, "its SinkReject names record 1.0 of a batch of 3"),
        (dict.fromkeys(range(3, 10_000), "x"), "its SinkReject names record 3 of a batch of 3"),
    ],
)
def test_a_rejection_with_wrong_indexes_is_a_failure_that_names_them(reasons: Any, message: str) -> None:
    class Confused(Moody):
        async def write(self, batch: Sequence[Record]) -> None:
            if len(self.writes) < 2:
                self.writes.append(Written((), taken=False))
                raise SinkReject(reasons)
            await super().write(batch)

    sink = Confused()
    records = [record(1, 1), record(2, 2), record(3, 3)]
    writer = BatchWriter(sink, options(attempts=5))
    with pytest.raises(SinkFailure) as raised:
        asyncio.run(writer.write(records))
    assert str(raised.value) == f"{message}; {SinkReject.takes}"
    assert deliver(sink, records, attempts=5).given_up == {}
    assert sink.has == [1, 2, 3]


@pytest.mark.parametrize("reasons", ["why", ["why"], {0}, 0, None, [(0, "why")]])
def test_a_rejection_of_the_wrong_type_names_the_expected_form(reasons: Any) -> None:
    with pytest.raises(TypeError, match=r"SinkReject takes \{index: reason\}, such as .*, not a value of the type"):
        SinkReject(reasons)


def test_a_record_always_rejected_with_wrong_indexes_becomes_a_dead_letter() -> None:
    class Confused(Moody):
        async def write(self, batch: Sequence[Record]) -> None:
            if any(each.position == 2 for each in batch):
                raise SinkReject({7: "x"})
            await super().write(batch)

    sink = Confused()
    delivery = deliver(sink, [record(1, 1), record(2, 2), record(3, 3)], attempts=2)
    assert {at: each.reason for at, each in delivery.given_up.items()} == {
        2: f"its SinkReject names record 7 of a batch of 1; {SinkReject.takes}"
    }
    assert {*sink.has} == {1, 3}


def test_a_reason_of_any_characters_can_be_stored() -> None:
    class Odd(Moody):
        async def write(self, batch: Sequence[Record]) -> None:
            texts: dict[int, Any] = {2: "ab\udcff\x00ż" + "x" * 10_000, 3: ValueError("no"), 4: None}
            reasons = {index: texts[each.position] for index, each in enumerate(batch) if each.position in texts}
            if reasons:
                raise SinkReject(reasons)
            if any(each.position == 5 for each in batch):
                raise OSError(2, "No such file", "caf\udce9")
            await super().write(batch)

    sink = Odd()
    delivery = deliver(sink, [record(position) for position in range(1, 6)], attempts=1, newcomers=True)
    found = {at: each.reason for at, each in delivery.given_up.items()}
    assert found == {2: "ab?\x00ż" + "x" * 495, 3: "no", 4: "None", 5: found[5]}
    assert found[5].startswith("FileNotFoundError: ")
    assert all(reason.encode() for reason in found.values())
    assert sink.has[0] == 1


def test_a_sink_may_reject_all_records_of_a_batch() -> None:
    sink = Moody(refused={1, 2, 3})
    delivery = deliver(sink, [record(1, 1), record(2, 2), record(3, 3)])
    assert delivery.given_up == {at: GivenUp(f"no {at}", 1) for at in (1, 2, 3)}
    assert (delivery.failures, len(sink.writes)) == (0, 1)


@pytest.mark.parametrize("raised", [ConnectionError, TimeoutError, SinkFailure, KeyError, asyncio.CancelledError])
def test_poison_is_found_whatever_the_sink_raises(raised: Callable[[str], BaseException]) -> None:
    class Poisoned(Moody):
        async def write(self, batch: Sequence[Record]) -> None:
            if any(each.position == 2 for each in batch):
                raise raised("price")
            await super().write(batch)

    sink = Poisoned()
    delivery = deliver(sink, [record(1, 1), record(2, 2), record(3, 3)], attempts=2)
    assert [*delivery.given_up] == [2]
    assert {*sink.has} == {1, 3}


def test_a_record_that_makes_the_sink_hang_becomes_a_dead_letter() -> None:
    class Hanging(Moody):
        async def write(self, batch: Sequence[Record]) -> None:
            if any(each.position == 2 for each in batch):
                await asyncio.Event().wait()
            await super().write(batch)

    sink = Hanging()
    delivery = deliver(sink, [record(1, 1), record(2, 2), record(3, 3)], attempts=2, timeout=0.01)
    assert {at: each.reason for at, each in delivery.given_up.items()} == {2: "a write took longer than 0.01 s"}
    assert {*sink.has} == {1, 3}


def test_a_timeout_of_the_sink_differs_from_the_timeout_of_the_writer() -> None:
    async def own() -> None:
        raise TimeoutError("the proxy was too slow")

    async def scenario() -> None:
        with pytest.raises(TimeoutError, match="the proxy was too slow"):
            await within(5, own(), "a write")
        with pytest.raises(SinkFailure, match=r"^opening it took longer than 0\.01 s$"):
            await within(0.01, asyncio.sleep(60), "opening it")

    asyncio.run(scenario())


def test_cancellation_ends_a_write_at_once() -> None:
    sink = Moody(moods=["hangs"] * 10)

    async def scenario() -> None:
        writing = asyncio.create_task(BatchWriter(sink, options(attempts=1)).write([record(1), record(2)]))
        await until(lambda: sink.writes)
        writing.cancel()
        await asyncio.wait([writing], timeout=5)
        assert writing.cancelled()

    asyncio.run(scenario())
    assert len(sink.writes) == 1


def test_a_batch_may_contain_records_that_are_not_events() -> None:
    """Plugins append other records, in which the same names may have other meanings."""
    odd = [Record("odd", 0, body, at) for at, body in enumerate([b'{"anonymousId":7}', b'{"tenant":[]}', b"[1]"], 2)]
    sink = Moody({1})
    delivery = deliver(sink, [record(1), *odd], attempts=1)
    assert [*delivery.given_up] == [1]
    assert {*sink.has} == {2, 3, 4}
