"""How far a sink is, durably: what became of the records behind its start."""

from __future__ import annotations

import msgspec

from ingestd.api.store import State, state_key

__all__ = ["LastFailure", "Progress", "load_last_failure", "load_progress", "save_last_failure", "save_progress"]


class Progress(msgspec.Struct, omit_defaults=True):
    """At rest, `position - began` of its place is `delivered + filtered + given_up`, and what was removed unseen."""

    began: int
    """The position behind which the sink started."""
    delivered: int = 0
    filtered: int = 0
    given_up: int = 0
    """Records that became dead letters."""
    replayed: int = 0
    """Records written again that it had had,"""
    given_up_again: int = 0
    """and those of them that became dead letters."""
    retried: int = 0
    """Dead letters that the sink has taken since,"""
    discarded: int = 0
    """and those that were thrown away."""
    letters: int = 0
    """The number of the newest dead letter."""
    command: int = msgspec.field(default=0, name="order")
    """The number of the last order that was carried out,"""
    at: int = 0
    """and how far the next one is: a position, or the number of a dead letter."""

    @property
    def dead(self) -> int:
        """The dead letters there are."""
        return self.given_up + self.given_up_again - self.retried - self.discarded


class LastFailure(msgspec.Struct, frozen=True):
    """Why a sink does not get on."""

    reason: str
    since: int
    """When it began to fail, in milliseconds."""
    at: int
    """Of the last failure."""
    failures: int
    """In a row."""


_decode_progress = msgspec.json.Decoder(Progress).decode
_decode_trouble = msgspec.json.Decoder(LastFailure).decode


async def load_progress(state: State, name: str) -> Progress | None:
    """None where the sink has never had a record."""
    found = await state.get(state_key("sink-progress", "", name))
    return None if found is None else _decode_progress(found)


async def save_progress(state: State, name: str, progress: Progress) -> None:
    await state.put(state_key("sink-progress", "", name), msgspec.json.encode(progress).decode())


async def load_last_failure(state: State, name: str) -> LastFailure | None:
    found = await state.get(state_key("sink-trouble", "", name))
    return None if found is None else _decode_trouble(found)


async def save_last_failure(state: State, name: str, trouble: LastFailure | None) -> None:
    key = state_key("sink-trouble", "", name)
    if trouble is None:
        await state.delete(key)
    else:
        await state.put(key, msgspec.json.encode(trouble).decode())
