"""How the records of a step of a sink ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ingestd.api.events import Record

from .batch_writer import GivenUp, Written

__all__ = ["StepResult"]


class StepResult(NamedTuple):
    """The result of a write: the records of a step, the indexes of those that pass the filter, and how these ended."""

    records: Sequence[Record]
    wanted: Sequence[int]
    written: Written

    @property
    def done(self) -> int:
        """The number of processed records, from the first."""
        return len(self.records) if self.written.done == len(self.wanted) else self.wanted[self.written.done]

    @property
    def delivered(self) -> int:
        return self.written.done - len(self.written.given_up) - len(self.written.left_out)

    @property
    def filtered(self) -> int:
        """The number of processed records that the filter excluded or the transform left out."""
        return self.done - self.written.done + len(self.written.left_out)

    @property
    def given_up(self) -> list[tuple[Record, GivenUp]]:
        return [(self.records[self.wanted[at]], given_up) for at, given_up in self.written.given_up.items()]
