"""Each cache of values that callers choose keeps within its size in bytes, even with the largest entries."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api import store
from ingestd.api.store import Field
from ingestd.http.server import head_parser as host
from ingestd.plugins.stores.cache import Entries, Loaded
from ingestd.plugins.stores.entry import Change, Row, SetEntry, set_key
from ingestd.plugins.stores.fields import Fields, text_memory
from ingestd.support import addresses

MIB = 1 << 20
EMOJI = "\N{GRINNING FACE}"


@contextmanager
def measured() -> Iterator[Callable[[], int]]:
    """A function that returns the bytes allocated since the start of the context and still in use."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def digest(number: int) -> str:
    return blake2b(b"%d" % number, digest_size=16).hexdigest()


@given(st.text(st.characters(codec=None)))
def test_a_text_takes_no_more_memory_than_is_counted(text: str) -> None:
    text.encode("utf-8", "surrogatepass")
    assert text.__sizeof__() <= text_memory(text) + 30  # 30 bytes: the header of a text is larger beyond ASCII


def large_value(number: int) -> Row:
    return f"link:{digest(number)}", f"{number} {'x' * 50_000}{EMOJI}", None, None


def large_set(number: int) -> Row:
    """A set of long members and one short member, the newest."""
    members: dict[str, Change] = {f"{each} {number} {'x' * 1500}{EMOJI}": (each, each, None) for each in range(200)}
    return set_key(f"touches:{digest(number)}"), None, {**members, "short": (201, 201, None)}, None


def large_fields(number: int) -> Row:
    fields = {f"name {each}{EMOJI}": Field(each, f'"{number} {each} {"x" * 100}{EMOJI}"') for each in range(500)}
    return f"user-profile:{digest(number)}", None, Fields(fields, durable=True), None


@pytest.mark.parametrize("make", [large_value, large_set, large_fields])
async def test_state_entries_of_any_content_stay_within_their_bytes(make: Callable[[int], Row]) -> None:
    numbers = count()

    def load(keys: Sequence[str], loaded: Loaded) -> None:
        loaded([(key, *make(next(numbers))[1:]) for key in keys])

    with measured() as used:
        entries = Entries(10_000, load, size=8 * MIB)
        for number in range(60):
            await entries.get(make(number)[0])
        assert entries.weight < 10 * MIB
        assert used() < 10 * MIB
        assert entries.count > 2


texts = st.text(st.sampled_from(f"ab{EMOJI}"), max_size=3)


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "restore"]), texts, st.integers(0, 9)), max_size=30))
def test_the_size_of_a_set_is_the_size_of_its_members(steps: list[tuple[str, str, int]]) -> None:
    entry = SetEntry(set_key("touches:1"))
    saved = entry.saved()
    for what, member, at in steps:
        if what == "add":
            entry.add(member, at, None, count())
        elif what == "remove" and member in entry.members:
            entry.remove([member])
        elif what == "restore":
            before, saved = saved, entry.saved()
            entry.restore(before)
    assert entry.weigh() == SetEntry(entry.key, {each: (0, at, None) for each, at in entry.members.items()}).weigh()


@given(st.lists(st.dictionaries(texts, st.builds(Field, st.integers(0, 9), texts), max_size=4), max_size=6))
def test_fields_take_the_memory_of_names_and_values(merges: list[dict[str, Field]]) -> None:
    fields = Fields()
    for each in merges:
        fields.merge(each)
        fields.drop_oldest(5, 10)
    assert fields.memory == Fields(dict(fields.items())).memory


def ids(characters: int, character: str) -> Iterable[str]:
    return (f"{number:06d}{character * (characters - 6)}" for number in range(36_000))


@pytest.mark.parametrize(
    ("cache", "names", "most"),
    [
        (lambda part: store.state_key("link", "shop", part), ids(64, "x"), 9),
        (lambda part: store.key_digest("shop", part), ids(64, "x"), 4),
        (lambda part: store.state_key("link", "shop", part), ids(64, EMOJI), 1),
        (lambda name: host.check_host("HTTP/1.1", {"Host": name}), (f"{n:06d}{'x' * 16_000}" for n in range(300)), 1),
        (addresses.ascii_domain, (f"{number:06d}{'ü' * 1000}" for number in range(2000)), 1),
    ],
    ids=["keys", "digests", "keys beyond ASCII", "hosts", "domains"],
)
def test_caches_keyed_by_texts_of_callers_stay_within_their_bytes(
    cache: Callable[[str], object], names: Iterable[str], most: int
) -> None:
    with measured() as used:
        for name in names:
            cache(name)
        assert used() < most * MIB
