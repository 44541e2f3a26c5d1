"""Records that consumers get from memory equal the records in the file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ingestd.api.events import Record
from ingestd.api.journal import size_of_all
from ingestd.plugins.stores.recent_records import Tail

MIB = 1 << 20

_appends = st.tuples(st.just("append"), st.lists(st.sampled_from([1, MIB, 3 * MIB, 9 * MIB]), max_size=4))
_trims = st.tuples(st.just("trim"), st.integers(0, 30))
_reads = st.tuples(st.just("read"), st.integers(0, 30))
_others = st.tuples(st.sampled_from(["replace", "unseen"]), st.just(0))


@given(st.lists(st.one_of(_appends, _trims, _reads, _others), max_size=20), st.integers(0, 30), st.integers(1, 5))
def test_records_in_memory_equal_the_journal_or_are_missing(
    story: list[tuple[str, object]], after: int, limit: int
) -> None:
    tail = Tail()
    journal: dict[int, Record] = {}
    last = 0
    for action, argument in story:
        if action == "append":
            assert isinstance(argument, list)
            records = [Record("event", 0, bytes(size)) for size in argument]
            last += len(records)
            tail.add(records, last, size_of_all(records))
            for position, record in enumerate(records, last - len(records) + 1):
                journal[position] = replace(record, position=position)
        elif action == "trim":
            assert isinstance(argument, int)
            tail.forget(argument)
            journal = {position: record for position, record in journal.items() if position > argument}
        elif action == "read":
            assert isinstance(argument, int)
            tail.read(argument, limit)
        elif action == "replace":
            tail.forget()
            journal = {position: replace(record, body=b"{}") for position, record in journal.items()}
        else:  # a commit with an unknown result
            last += 1
            journal[last] = Record("event", 0, b"unseen", last)
    given_back = tail.read(after, limit)
    if given_back is not None:
        assert given_back
        assert given_back == [journal[p] for p in range(after + 1, after + 1 + len(given_back))]
        assert len(given_back) == limit or after + len(given_back) == last or after + len(given_back) + 1 in journal


def test_new_durable_records_are_in_memory_up_to_a_limit() -> None:
    tail = Tail()
    for position in range(1, 13):
        records = [Record("event", 0, bytes(MIB))]
        tail.add(records, position, size_of_all(records))
    assert tail.read(1, 5) is None
    newest = tail.read(9, 5)
    assert newest is not None
    assert [record.position for record in newest] == [10, 11, 12]
    assert tail.read(12, 5) is None
