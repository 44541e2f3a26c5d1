"""The mark by which daemons learn that a person was forgotten, so that they drop texts of people from their memory."""

from __future__ import annotations

from ingestd.api.store import State, state_key

__all__ = ["REMOVED", "last_erasure", "note_erasure"]

REMOVED = "removed by ingestd forget"
"""Replaces the text of an error of before."""

_MARK = state_key("erased", "", "")
_LIFE = 86_400_000  # milliseconds: daemons look each second, but may be cut off from the store


async def last_erasure(state: State) -> str | None:
    """The newest mark of the last day, or None."""
    return await state.get(_MARK)


async def note_erasure(state: State, mark: str) -> None:
    """Call with a new mark when an erasure begins, and again once the person's data is blanked."""
    await state.put(_MARK, mark, _LIFE)
