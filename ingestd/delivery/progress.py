"""The durable progress of a sink: how many records it has taken, given up and replayed."""

from __future__ import annotations

import msgspec

from ingestd.api.store import State, state_key

__all__ = ["LastFailure", "Progress", "load_last_failure", "load_progress", "save_last_failure", "save_progress"]


class Progress(msgspec.Struct, omit_defaults=True):
    """The counts of a sink.

    Without records in progress, `position - began` of its cursor equals `delivered + filtered + given_up`, plus the
    records that were removed unread.
    """

    began: int
    """The position after which the sink started."""
    delivered: int = 0
    filtered: int = 0
    given_up: int = 0
    """Records that became dead letters."""
    replayed: int = 0
    """Records of replays that the sink took."""
    given_up_again: int = 0
    """Records of replays that became dead letters."""
    retried: int = 0
    """Dead letters that the sink has taken since."""
    discarded: int = 0
    """Dead letters that were discarded."""
    letters: int = 0
    """The number of the newest dead letter."""
    command: int = msgspec.field(default=0, name="order")
    """The number of the last completed command."""
    at: int = 0
    """The progress of the next command: a position, or the number of a dead letter."""

    def finish(self, command: int) -> None:
        """The command with that number is completed."""
        self.command, self.at = command, 0

    @property
    def dead(self) -> int:
        """The number of dead letters now."""
        return self.given_up + self.given_up_again - self.retried - self.discarded


class LastFailure(msgspec.Struct, frozen=True):
    """Why a sink fails at present."""

    reason: str
    since: int
    """When the sink began to fail, in milliseconds."""
    at: int
    """The time of the last failure, in milliseconds."""
    failures: int
    """The number of failures in a row."""


_decode_progress = msgspec.json.Decoder(Progress).decode
_decode_failure = msgspec.json.Decoder(LastFailure).decode


async def load_progress(state: State, name: str) -> Progress | None:
    """The progress of a sink, or None if the sink has never had a record."""
    found = await state.get(state_key("sink-progress", "", name))
    return None if found is None else _decode_progress(found)


async def save_progress(state: State, name: str, progress: Progress) -> None:
    await state.put(state_key("sink-progress", "", name), msgspec.json.encode(progress).decode())


async def load_last_failure(state: State, name: str) -> LastFailure | None:
    found = await state.get(state_key("sink-trouble", "", name))
    return None if found is None else _decode_failure(found)


async def save_last_failure(state: State, name: str, failure: LastFailure | None) -> None:
    key = state_key("sink-trouble", "", name)
    if failure is None:
        await state.delete(key)
    else:
        await state.put(key, msgspec.json.encode(failure).decode())
