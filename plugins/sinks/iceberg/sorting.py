"""Sorting more rows than fit into memory: sorted runs wait compressed, and are merged when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from ..parquet.rows import pack

__all__ = ["SortedRows", "sorted_rows"]

_RUN = 16 << 20
"""Bytes of rows that are sorted at once. Memory for three times as much is needed."""
_WINDOW = 1 << 20
"""Bytes of each run that are in memory while the runs are merged."""
_ORDER = ("key", "type", "received_at")
"""The columns by which the rows of a file are sorted."""


def sorted_rows(rows: pa.Table, first: Sequence[str] = ()) -> pa.Table:
    """The rows in the order of a file, or by other columns first."""
    names = [name for name in (*first, *_ORDER) if name == _ORDER[-1] or len(rows[name].unique()) > 1]
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))


class SortedRows:
    """Rows that are added in any order, and read in the order of a file."""

    def __init__(self) -> None:
        self._waiting: list[pa.Table] = []
        self._runs: list[pa.Buffer] = []
        self._order: list[pa.Table] = []
        """The columns of each run by which it is sorted."""
        self._size = self._whole = 0
        """The bytes of the rows that wait, and of all."""

    def add(self, rows: pa.Table) -> None:
        if not len(rows):
            return
        self._waiting.append(rows)
        self._size += rows.nbytes
        if self._size >= _RUN:
            self._end_run()

    def _end_run(self) -> None:
        rows = sorted_rows(pa.concat_tables(self._waiting, promote_options="default").combine_chunks())
        # Most columns belong to a few keys.
        rows = rows.select([name for name in rows.column_names if rows[name].null_count < len(rows)])
        self._order.append(pa.table({name: _known(rows, name) for name in _ORDER}))
        count = max(1, len(rows) * _WINDOW // max(1, rows.nbytes))
        self._runs.append(pack(rows, count))
        self._whole += rows.nbytes
        self._waiting, self._size = [], 0

    def parts(self, size: int) -> Iterator[pa.Table]:
        """The rows in their order, in parts of about so many bytes. Nothing can be added any more."""
        if self._waiting:
            self._end_run()
        if not self._runs:
            return
        order = pa.concat_tables(self._order)
        ends: list[int] = []
        for each in self._order:
            ends.append((ends[-1] if ends else 0) + len(each))
        indices = pc.sort_indices(order, sort_keys=[(name, "ascending") for name in _ORDER])
        del order
        self._order = []
        runs = [_Run(packed) for packed in self._runs]
        count = max(1, len(indices) * size // max(1, self._whole))
        for first in range(0, len(indices), count):
            part = indices.slice(first, count)
            # A run is sorted, and the sort is stable: the rows of each run come in their order.
            upto = [pc.sum(pc.less(part, end)).as_py() for end in ends]
            counts = [end - begin for begin, end in pairwise([0, *upto])]
            rows = [run.read(each) for run, each in zip(runs, counts, strict=True) if each]
            whole = pa.concat_tables(rows, promote_options="default").combine_chunks()
            yield whole.take(pc.subtract(pc.rank(part, tiebreaker="first"), 1))


class _Run:
    """Reads the rows of a run, one window after the other."""

    def __init__(self, packed: pa.Buffer) -> None:
        self._batches = pa.ipc.open_stream(packed)
        self._rows: pa.Table | None = None

    def read(self, count: int) -> pa.Table:
        rows = [] if self._rows is None else [self._rows]
        missing = count - sum(map(len, rows))
        while missing > 0:
            rows.append(pa.Table.from_batches([self._batches.read_next_batch()]))
            missing -= len(rows[-1])
        whole = pa.concat_tables(rows)
        self._rows = whole.slice(count)
        return whole.slice(0, count)


def _known(rows: pa.Table, name: str) -> pa.Array:
    """A column without which the run was made: it has no values."""
    return rows[name] if name in rows.column_names else pa.nulls(len(rows), pa.string())
