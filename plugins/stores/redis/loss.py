"""A loss of data: Redis is empty, has older content, or another Redis answers."""

from __future__ import annotations

from typing import Any

import msgspec

from ingestd.api.times import format_time

__all__ = ["Loss", "decode_loss"]


_KINDS = {"empty": "came back empty", "older": "came back with older content", "other": "is another one"}


class Loss(msgspec.Struct, frozen=True):
    """A loss in the form of batch.lua. The positions are 0 if the journal is not in this store."""

    kind: str
    """The end of a sentence that begins with "the store", or a key of `_KINDS`, which batch.lua uses."""
    at: int
    """Time of discovery, in milliseconds."""
    known: int
    """The newest position that the daemon knew before."""
    found: int
    """The newest position found."""
    stands: bool
    before: str

    def __str__(self) -> str:
        text = f"the store {_KINDS.get(self.kind, self.kind)} (found {format_time(self.at)})"
        if self.kind in _KINDS and (self.known or self.found):
            text += f": its journal ends at {self.found}, and ended at {self.known} before"
        return text


def decode_loss(found: Any) -> Loss | None:
    """Convert an answer of batch.lua. It is false without a loss."""
    return msgspec.convert(found, Loss) if found else None
