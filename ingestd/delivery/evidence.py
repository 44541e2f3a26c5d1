"""Evidence that a sink takes other records, so that one failing record is at fault and not the sink."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from ingestd.api.events import Record

__all__ = ["Evidence"]


class Evidence:
    """Evidence that a sink takes new records, shared by all writers of the sink.

    A repeated record is no evidence: a sink may recognise its id and take it while it refuses all new records. So each
    record counts once, and only while its position is after the sink's cursor.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Discard all evidence, because another daemon may write to the sink from now on."""
        self.ahead: Sequence[Record] = ()
        """The next records of the journal, in order and without a gap."""
        self.wanted = False
        """Whether `ahead` must be read again."""
        self.taken = 0
        """How often the sink took new records."""
        self._delivered = 0
        """The position up to which records were delivered in journal order."""
        self._probes: set[int] = set()
        """The positions after `_delivered` that the sink took as probes."""

    def find_probes(self, records: Sequence[Record], offered: Container[int]) -> list[Record]:
        """New records of other visitors than the visitor of the first record.

        The answer has only the next record of each visitor, so that the records of a visitor stay in order. Records of
        a failed write (`offered`) come last, because the sink may have kept some of them.
        """
        ahead = (record for record in self.ahead if record.position > records[-1].position)
        found = self._next_of_each_visitor(records[0], [*records[1:], *ahead])
        return sorted(found, key=lambda record: record.position in offered)

    def _next_of_each_visitor(self, suspect: Record, records: Iterable[Record]) -> list[Record]:
        seen = {_owner_of(suspect)}
        found: list[Record] = []
        for record in records:
            if record.position <= self._delivered or record.position in self._probes:
                continue
            owner = _owner_of(record)
            if owner not in seen:
                seen.add(owner)
                found.append(record)
        return found

    def add_probe(self, record: Record) -> None:
        """The sink took this record as a probe."""
        self._probes.add(record.position)
        self.taken += 1

    def add_taken(self, batch: Sequence[Record]) -> None:
        """The sink took a batch in journal order."""
        if batch[-1].position > self._delivered and batch[-1].position not in self._probes:
            self.taken += 1

    def delivered_up_to(self, position: int) -> None:
        self._delivered = max(self._delivered, position)
        if self._probes:
            self._probes = {each for each in self._probes if each > position}


def _owner_of(record: Record) -> tuple[str | None, str | None]:
    envelope = record.envelope()
    return envelope.tenant, envelope.anonymous_id
