"""A loss of data: Redis came back empty, or older, or another one answers in its place."""

from __future__ import annotations

from typing import Any

import msgspec

from ingestd.api.times import format_time

__all__ = ["Loss", "decode_loss"]


_KINDS = {"empty": "came back empty", "older": "came back with older content", "other": "is another one"}


class Loss(msgspec.Struct, frozen=True):
    """As batch.lua has it. Positions are of the journal; they are 0 where that is kept elsewhere."""

    kind: str
    """What goes on behind "the store", or one of three words of batch.lua for that."""
    at: int
    """When it was found, in milliseconds."""
    known: int
    """The newest position the daemon knew before."""
    found: int
    """The newest position it found."""
    stands: bool
    before: str

    def __str__(self) -> str:
        text = f"the store {_KINDS.get(self.kind, self.kind)} (found {format_time(self.at)})"
        if self.kind in _KINDS and (self.known or self.found):
            text += f": its journal ends at {self.found}, and ended at {self.known} before"
        return text


def decode_loss(found: Any) -> Loss | None:
    """`found` is what batch.lua answers: no loss is false."""
    return msgspec.convert(found, Loss) if found else None
