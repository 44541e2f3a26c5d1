from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.api.record_batch import Records, length_of, lines_of

bodies = st.binary(max_size=12) | st.sampled_from([b"{}", b'{"a":\n1}', b"\n", b"\n\n", b""])
some = st.lists(st.tuples(st.sampled_from(["event", "identify"]), st.integers(0, 2**45), bodies), max_size=8)


def both(rows: list[tuple[str, int, bytes]]) -> tuple[Records, list[Record]]:
    records = [Record(type_, at, body, position) for position, (type_, at, body) in enumerate(rows, 7)]
    lines = b"".join(record.body + b"\n" for record in records)
    columns = zip(*[(each.type, each.at, each.position, len(each.body)) for each in records], strict=True)
    types, ats, positions, lengths = columns
    return Records(types, ats, positions, lengths, lines), records


@given(some.filter(bool), st.integers(-9, 9), st.slices(9))
def test_a_batch_has_the_records_it_was_made_of(rows: list[tuple[str, int, bytes]], at: int, part: slice) -> None:
    for made in (False, True):
        found, expected = both(rows)
        if made:
            assert list(found) == expected
        assert len(found) == len(expected)
        assert list(found[part]) == expected[part]
        if -len(rows) <= at < len(rows):
            assert found[at] == expected[at]
        else:
            with pytest.raises(IndexError):
                found[at]
        assert [*found] == expected


@given(some.filter(bool))
def test_lines_and_length_agree_with_the_records(rows: list[tuple[str, int, bytes]]) -> None:
    found, expected = both(rows)
    assert length_of(found) == length_of(expected) == sum(len(record.body) for record in expected)
    assert lines_of(found) == lines_of(expected)


@given(some)
def test_each_body_is_one_line(rows: list[tuple[str, int, bytes]]) -> None:
    records = [Record(*row) for row in rows]
    assert lines_of(records).split(b"\n")[:-1] == [record.body.replace(b"\n", b" ") for record in records]


def test_a_slice_of_all_records_is_the_batch_itself() -> None:
    records, _ = both([("event", 1, b"{}"), ("event", 2, b"{}")])
    assert records[:5] is records
    assert not Records([], [], [], [], b"")
