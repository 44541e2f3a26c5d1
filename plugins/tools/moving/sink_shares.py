"""The progress and the dead letters of a sink, shared out among the partitions of a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.delivery.batch_plan import BATCH_PLAN
from ingestd.delivery.dead_letters import (
    BYTES_KIND,
    add_letter_bytes,
    load_letter_bytes,
    read_letters,
    remove_letter,
    save_dead_letter,
    whole_record,
)
from ingestd.delivery.operator_commands import load_commands, set_paused
from ingestd.delivery.progress import LAST_FAILURE, PROGRESS, Progress
from ingestd.delivery.sink_consumer import PREFIX

from .record_copy import Cut
from .sides import Side

__all__ = ["SINK_KINDS", "refuse_unfinished_work", "share_sink"]

SINK_KINDS = frozenset({"dead-letter", BYTES_KIND, "sink-batch", "sink-orders", "sink-progress", "sink-trouble"})
"""The kinds of entries that this module shares out."""


async def refuse_unfinished_work(source: Side, sink: str, position: int) -> None:
    """Raises `CommandError` if a command waits for the sink, or a batch must be repeated as it was."""
    state = source.store.begin(times.now())
    progress, commands, plan = (
        await PROGRESS.load(state, sink), await load_commands(state, sink), await BATCH_PLAN.load(state, sink)
    )  # fmt: skip
    done = 0 if progress is None else progress.command
    cure = "let a daemon finish it before it stops (ingestd sinks status)"
    if any(command.number > done for command in commands.waiting):
        raise CommandError(f"{source}: sink {sink} has a command that is not done; {cure}")
    if plan is not None and plan.last > position:
        raise CommandError(f"{source}: sink {sink} has begun a batch; {cure}")


async def share_sink(
    source: Sequence[Side],
    target: Sequence[Side],
    cut: Cut,
    *,
    ends: Sequence[int],
    begin: int,
    index_of: Callable[[Record], int],
) -> None:
    """Give each partition its dead letters. The other counts are in the first one, so that the totals stay.

    `ends` are the positions of the sink's cursors in the partitions of the target. Letters get positions
    from `begin` downwards, which no other record has or ever had: a sink may tell records by their positions. A source
    with one partition keeps the numbers of its letters. Raises `CommandError`, `Unavailable`.
    """
    now, sink = times.now(), cut.consumer.removeprefix(PREFIX)
    states = [side.store.begin(now) for side in source]
    all_progress = [await PROGRESS.load(state, sink) for state in states]
    paused = any([(await load_commands(state, sink)).paused for state in states])
    for side in target:
        if paused or (await load_commands(side.store.begin(now), sink)).paused:
            await set_paused(side.store, sink, paused=paused)
    if not any(all_progress):
        return
    await _clear(target, sink, sum(progress.letters for progress in all_progress if progress is not None))
    total = Progress(0)
    counts, newest, position = [0] * len(target), [0] * len(target), begin
    for side, state, progress, reached in zip(source, states, all_progress, cut.positions, strict=True):
        if progress is None:
            continue
        _add(total, progress, reached)
        async for letter in read_letters(state, sink, 0, progress.letters):
            index = index_of(letter.to_record())
            counts[index] += 1
            newest[index] = letter.number if len(source) == 1 else counts[index]
            moved = msgspec.structs.replace(letter, number=newest[index], position=position)
            if letter.omitted and (record := await whole_record(letter, side.journal)) is not None:
                # No letter finds its record by its new position.
                moved.record, moved.omitted = msgspec.Raw(record.body), 0
            position -= 1
            given = target[index].store.begin(now)
            await save_dead_letter(given, sink, moved)
            await add_letter_bytes(given, sink, moved.size)
            await target[index].store.commit(given)
    # The first partition comes last, because it has what the others do not take.
    for index in reversed(range(len(target))):
        own = total
        if index:
            # A letter counts as given up once. Those of replays count apart, and do not belong to the cursor's records.
            given_up = min(counts[index], total.given_up)
            own = Progress(given_up, given_up=given_up, given_up_again=counts[index] - given_up)
            total.began, total.given_up = total.began - given_up, total.given_up - given_up
            total.given_up_again -= own.given_up_again
        own.began = ends[index] - own.began
        own.letters = (all_progress[0] or total).letters if len(source) == 1 else newest[index]
        given = target[index].store.begin(now)
        await PROGRESS.save(given, own, sink)
        await target[index].store.commit(given)
    failures = [failure for state in states if (failure := await LAST_FAILURE.load(state, sink)) is not None]
    given = target[0].store.begin(now)
    await LAST_FAILURE.save(given, max(failures, key=attrgetter("at"), default=None), sink)
    await target[0].store.commit(given)


def _add(total: Progress, progress: Progress, reached: int) -> None:
    """Add counts. `began` of the total counts the records since the start. The target has had no commands."""
    total.began += reached - progress.began
    for name in ("delivered", "filtered", "given_up", "replayed", "given_up_again", "retried", "discarded"):
        setattr(total, name, getattr(total, name) + getattr(progress, name))


async def _clear(target: Sequence[Side], sink: str, letters: int) -> None:
    """Remove the letters of an interrupted run. At most `letters` follow, which the next run would find and remove."""
    for side in target:
        state = side.store.begin(times.now())
        progress = await PROGRESS.load(state, sink)
        await PROGRESS.save(state, Progress(0, letters=max(letters, 0 if progress is None else progress.letters)), sink)
        await add_letter_bytes(state, sink, -(await load_letter_bytes(state, sink) or 0))
        await side.store.commit(state)
        async for letter in read_letters(state, sink, 0, 0 if progress is None else progress.letters):
            change = side.store.begin(times.now())
            await remove_letter(change, sink, letter.number)
            await side.store.commit(change)
