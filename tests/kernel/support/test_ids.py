from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

import pytest

from ingestd.support.ids import named_uuid, next_uuids, random_uuid, time_uuid


@pytest.mark.parametrize(("make", "version"), [(time_uuid, 7), (random_uuid, 4)])
def test_ids_are_uuids_and_never_the_same(make: Callable[[], str], version: int) -> None:
    made = [make() for _ in range(5000)]
    assert len(set(made)) == 5000
    for text in made:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.variant, parsed.version) == (text, uuid.RFC_4122, version)


@pytest.mark.parametrize("make", [time_uuid, random_uuid])
def test_a_forked_process_makes_other_ids(make: Callable[[], str]) -> None:
    make()
    forks = [ProcessPoolExecutor(1, multiprocessing.get_context("fork")) for _ in range(2)]
    made = [make(), *(each.submit(make).result() for each in forks)]
    assert len({each[-12:] for each in made}) == 3
    for each in forks:
        each.shutdown()


def test_a_time_uuid_carries_its_millisecond_and_sorts_by_it() -> None:
    before = time.time_ns() // 1_000_000
    first = time_uuid()
    after = time.time_ns() // 1_000_000
    assert before <= uuid.UUID(first).int >> 80 <= after
    while time.time_ns() // 1_000_000 <= after:
        pass
    assert first < time_uuid()


@pytest.mark.parametrize("first", [time_uuid(), "01a1ff1d-4f96-7fff-bfff-fffffffffffe"], ids=["new", "last"])
def test_the_next_uuids_have_the_same_time_and_are_distinct(first: str) -> None:
    made = [*islice(next_uuids(first), 1000)]
    assert made[0] == first
    assert len(set(made)) == 1000
    for text in made:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.variant, parsed.version) == (text, uuid.RFC_4122, 7)
        assert text[:18] == first[:18]


def test_the_next_uuids_sort_in_order() -> None:
    made = [*islice(next_uuids("01a1ff1d-4f96-7fff-8fff-fffffffffffe"), 1000)]
    assert made == sorted(made)


def test_a_named_uuid_depends_on_all_its_parts() -> None:
    parts = [
        *((str(number), "part") for number in range(2000)),
        ("a", "b:c"),
        ("a:b", "c"),
        ("ab", ""),
        ("ab",),
        ("\ud800",),
    ]
    made = [named_uuid(*each) for each in parts]
    assert made == [named_uuid(*each) for each in parts]
    assert len(set(made)) == len(parts)
    for text in made:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.variant, parsed.version) == (text, uuid.RFC_4122, 8)
