"""Operators' commands for a sink. The state keeps them, and the daemon that holds the sink's cursor executes them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError, WriteConflict
from ingestd.api.store import State, Store, StoredValue

from .progress import PROGRESS

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
    """The number of the command. Commands are executed in the order of their numbers."""
    last: int
    """The number of the last dead letter of the command; later letters are not affected."""
    letters: tuple[int, ...] | None = None
    """The numbers of the dead letters, or None for all."""


class Retry(_Letters, tag="retry"):
    """Write dead letters again."""


class Discard(_Letters, tag="discard"):
    """Delete dead letters."""


class Replay(msgspec.Struct, tag="replay", kw_only=True):
    """Write records again that the sink has already had."""

    number: int = 0
    first: int
    last: int
    """Positions, both inclusive."""
    keys: tuple[str, ...] | None = None
    """The event keys of the records, or None for all records."""


OperatorCommand = Retry | Discard | Replay


class OperatorCommands(msgspec.Struct, omit_defaults=True):
    """The commands for a sink. Only the command line writes them; the sink's `Progress` says which are done."""

    paused: bool = False
    given: int = 0
    """The number of commands ever given, which is the number of the newest command."""
    waiting: list[OperatorCommand] = []


_COMMANDS = StoredValue("sink-orders", OperatorCommands)


async def load_commands(state: State, name: str) -> OperatorCommands:
    return await _COMMANDS.load(state, name) or OperatorCommands()


async def give_command(store: Store, name: str, command: OperatorCommand) -> int:
    """Add a command after the earlier commands, and return its number. Raises `Unavailable`, `CommandError`."""

    def add(commands: OperatorCommands) -> None:
        commands.given += 1
        command.number = commands.given
        commands.waiting.append(command)

    await _change(store, name, add)
    return command.number


async def set_paused(store: Store, name: str, *, paused: bool) -> bool:
    """Pause or resume a sink. Return whether that changed anything. Raises `Unavailable`, `CommandError`."""
    before = False

    def change(commands: OperatorCommands) -> None:
        nonlocal before
        before, commands.paused = commands.paused, paused

    await _change(store, name, change)
    return before != paused


async def _change(store: Store, name: str, change: Callable[[OperatorCommands], None]) -> None:
    key = _COMMANDS.key(name)
    for _ in range(_ATTEMPTS):
        # A separate transaction reads the progress: a busy sink changes it often, which must not be a conflict.
        look = store.begin(times.now())
        progress = await PROGRESS.load(look, name)
        await store.commit(look)
        done = 0 if progress is None else progress.command
        state = store.begin(times.now())
        found = await state.get(key)
        commands = OperatorCommands() if found is None else _COMMANDS.decode(found)
        commands.waiting = [command for command in commands.waiting if command.number > done]
        change(commands)
        try:
            if await state.swap(key, found, _COMMANDS.encode(commands)):
                await store.commit(state)
                return
        except WriteConflict:  # another command was faster
            continue
    raise CommandError(f"the commands for sink {name} keep changing; try again")
