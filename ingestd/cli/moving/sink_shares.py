"""The progress, dead letters and commands of a sink, divided among partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.delivery.batch_plan import load_plan
from ingestd.delivery.dead_letters import DeadLetter, read_letters, save_dead_letter
from ingestd.delivery.operator_commands import load_commands, set_paused
from ingestd.delivery.progress import Progress, load_last_failure, load_progress, save_last_failure, save_progress

from .sides import Side

__all__ = ["SINK_KINDS", "divide_sink", "letters_of", "refuse_unfinished_work"]

SINK_KINDS = frozenset({"dead-letter", "sink-batch", "sink-orders", "sink-progress", "sink-trouble"})
"""The kinds of entries that this module divides."""


async def refuse_unfinished_work(source: Side, sink: str, position: int) -> None:
    """Raises `CommandError` if a command waits for the sink, or a batch must be repeated as it was."""
    state = source.store.begin(times.now())
    progress, commands, plan = (
        await load_progress(state, sink), await load_commands(state, sink), await load_plan(state, sink)
    )  # fmt: skip
    done = 0 if progress is None else progress.command
    cure = "let a daemon finish it before it stops (ingestd sinks status)"
    if any(command.number > done for command in commands.waiting):
        raise CommandError(f"{source}: sink {sink} has a command that is not done; {cure}")
    if plan is not None and plan.last > position:
        raise CommandError(f"{source}: sink {sink} has begun a batch; {cure}")


async def letters_of(source: Side, sink: str) -> Sequence[DeadLetter]:
    """The dead letters without their records, which may be large."""
    state = source.store.begin(times.now())
    progress = await load_progress(state, sink)
    if progress is None:
        return []
    letters = read_letters(state, sink, 0, progress.letters)
    return [msgspec.structs.replace(each, record=msgspec.Raw(b"{}")) async for each in letters]


async def divide_sink(
    source: Side,
    parts: Sequence[Side],
    sink: str,
    moved: Sequence[int],
    place: Callable[[DeadLetter], tuple[int, int]],
) -> int:
    """Give each partition its dead letters. The other counts stay in the first one, so that the totals stay.

    `moved` has by how much the sink's cursor is higher in each partition than in the source. `place` tells the
    partition of a letter and the new position of its record. Returns the number of letters.
    """
    now = times.now()
    state = source.store.begin(now)
    progress, commands = await load_progress(state, sink), await load_commands(state, sink)
    if progress is None:
        return 0
    numbers = [0] * len(parts)
    async for letter in read_letters(state, sink, 0, progress.letters):
        index, position = place(letter)
        numbers[index] += 1
        given = parts[index].store.begin(now)
        await save_dead_letter(given, sink, msgspec.structs.replace(letter, position=position))
        await parts[index].store.commit(given)
    first = msgspec.structs.replace(progress, began=progress.began + moved[0])
    for index, part in enumerate(parts):
        given = part.store.begin(now)
        if index:
            # A letter counts as given up once. Those of replays count apart, and do not belong to the cursor's records.
            own = min(numbers[index], first.given_up)
            again = numbers[index] - own
            first.given_up, first.began = first.given_up - own, first.began + own
            first.given_up_again -= again
            own_position = await _position(part, sink)
            share = Progress(own_position - own, given_up=own, given_up_again=again, letters=progress.letters)
            await save_progress(given, sink, share)
        await part.store.commit(given)
        if commands.paused:
            await set_paused(part.store, sink, paused=True)
    given = parts[0].store.begin(now)
    await save_progress(given, sink, first)
    await save_last_failure(given, sink, await load_last_failure(state, sink))
    await parts[0].store.commit(given)
    return sum(numbers)


async def _position(side: Side, sink: str) -> int:
    for cursor in await side.journal.cursors():
        if cursor.name.partition(":")[2] == sink:
            return cursor.position
    return 0
