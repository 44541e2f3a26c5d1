"""What operators tell a sink to do. It is kept in the state, and done by the daemon that goes on with the sink."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError, Conflict
from ingestd.api.store import State, Store, state_key

from .progress import load_progress

__all__ = [
    "Discard",
    "OperatorCommand",
    "OperatorCommands",
    "Replay",
    "Retry",
    "give_command",
    "load_commands",
    "set_paused",
]

_ATTEMPTS = 10


class _Letters(msgspec.Struct, kw_only=True):
    number: int = 0
    """Of the order: they are carried out one after the other."""
    last: int
    """Up to this dead letter; later ones are not meant."""
    letters: tuple[int, ...] | None = None
    """The numbers that are meant; None: all."""


class Retry(_Letters, tag="retry"):
    """Write dead letters again."""


class Discard(_Letters, tag="discard"):
    """Throw dead letters away."""


class Replay(msgspec.Struct, tag="replay", kw_only=True):
    """Write records again that the sink has had."""

    number: int = 0
    first: int
    last: int
    """Positions, both inclusive."""
    keys: tuple[str, ...] | None = None
    """Event keys; None: all records."""


OperatorCommand = Retry | Discard | Replay


class OperatorCommands(msgspec.Struct, omit_defaults=True):
    """Written by commands alone: what a sink has done of it is in its `Progress`."""

    paused: bool = False
    given: int = 0
    """How many there ever were: the number of the newest."""
    waiting: list[OperatorCommand] = []


_decode = msgspec.json.Decoder(OperatorCommands).decode


async def load_commands(state: State, name: str) -> OperatorCommands:
    found = await state.get(_key(name))
    return OperatorCommands() if found is None else _decode(found)


async def give_command(store: Store, name: str, command: OperatorCommand) -> int:
    """Have it carried out after those given before; returns its number. Raises `Unavailable`, `CommandError`."""

    def add(commands: OperatorCommands) -> None:
        commands.given += 1
        command.number = commands.given
        commands.waiting.append(command)

    await _change(store, name, add)
    return command.number


async def set_paused(store: Store, name: str, *, paused: bool) -> bool:
    """Returns whether that changed anything. Raises `Unavailable`, `CommandError`."""
    before = False

    def change(commands: OperatorCommands) -> None:
        nonlocal before
        before, commands.paused = commands.paused, paused

    await _change(store, name, change)
    return before != paused


async def _change(store: Store, name: str, change: Callable[[OperatorCommands], None]) -> None:
    for _ in range(_ATTEMPTS):
        # In a unit of its own: a busy sink changes it all the time, and that is no conflict.
        look = store.begin(times.now())
        progress = await load_progress(look, name)
        await store.commit(look)
        done = 0 if progress is None else progress.command
        state = store.begin(times.now())
        found = await state.get(_key(name))
        commands = OperatorCommands() if found is None else _decode(found)
        commands.waiting = [command for command in commands.waiting if command.number > done]
        change(commands)
        try:
            if await state.swap(_key(name), found, msgspec.json.encode(commands).decode()):
                await store.commit(state)
                return
        except Conflict:  # another command was quicker
            continue
    raise CommandError(f"the orders of sink {name} keep changing; try again")


def _key(name: str) -> str:
    return state_key("sink-orders", "", name)
