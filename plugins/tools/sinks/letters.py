"""`ingestd sinks dead-letters list|show|retry|discard`: the records that a sink did not take."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.errors import CommandError
from ingestd.api.output import columns, write, write_json, write_result
from ingestd.config import Config
from ingestd.delivery.dead_letters import RECORD_GONE, DeadLetter, read_letter, whole_record
from ingestd.delivery.operator_commands import Discard, Retry, give_command
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import open_backends
from ingestd.support.record_head import read_head
from ingestd.support.terminal import cut, printable, table

from .durable import letters_of, read_durable
from .given import Given, Outcome
from .partitions import check_configured, check_known, find_partition, in_each, known_sinks, named
from .progress_bar import ProgressBar
from .running import Run, check_ready, conclude, make_feeder, waiting

__all__ = ["discard", "list_letters", "retry", "show"]

_KEY = 30  # columns for an event key on a narrow terminal
_REASON = 20  # columns for a reason on a narrow terminal
_TOLD = 20  # remaining dead letters that are listed for people
_VERBS: dict[type[Retry | Discard], str] = {Retry: "taken", Discard: "discarded"}


async def list_letters(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    name = arguments.name
    letters: list[_Found] = []
    async with open_backends(config, plugins) as backends:
        missing = MissingPartitions(backends.partitions)
        check_known(name, await known_sinks(config, backends.partitions))
        for partition in backends.partitions:
            with missing.tolerating(partition):
                async for found in _read(name, partition):
                    if arguments.json:
                        write_json(_facts(name, found))
                    else:
                        letters.append(found)
    if letters:
        write(_listing(letters, columns()))
    elif not arguments.json:
        write([f"{name} has no dead letters"])
    missing.check("its dead letters are missing here")


async def show(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    name = arguments.name
    async with open_backends(config, plugins) as backends:
        check_known(name, await known_sinks(config, backends.partitions))
        partition = find_partition(arguments.number.partition, backends.partitions, "dead letters")
        (number,) = arguments.number.numbers
        letter = await read_letter(partition.store.begin(times.now()), name, number)
        if letter is None:
            raise CommandError(f"{name} has no dead letter {named(partition.name, number)}")
        whole = await whole_record(letter, partition.journal)
    facts = _facts(name, _Found(partition.name, letter))
    record = None if whole is None else msgspec.json.decode(whole.body)
    if arguments.json:
        write_json({**facts, "record": record})
        return
    write(table([(f"{fact}:", printable(str(value))) for fact, value in facts.items()]))
    if letter.omitted:
        write(["", "from the journal, since the letter was stored without its record:" if whole else RECORD_GONE])
    if whole is not None:
        write(["", *map(printable, json.dumps(record, indent=2, ensure_ascii=False).split("\n"))])


async def retry(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    await _Order(arguments, config, plugins).carry_out(Retry)


async def discard(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    order = _Order(arguments, config, plugins)
    confirmed = None
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise CommandError("discarded dead letters cannot be restored: confirm with --yes")
        confirmed = await order.choose()
        if confirmed and not _confirmed(
            f"Discard {_count(confirmed)} dead letters of {arguments.name} for good? [y/N] "
        ):
            raise CommandError("nothing was discarded")
    await order.carry_out(Discard, confirmed)


_Chosen = dict[str, list[int]]
"""The numbers of dead letters by the name of their partition. A partition without any is left out."""


class _Order:
    """An operator command for some dead letters."""

    def __init__(self, arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
        if bool(arguments.numbers) is arguments.all:
            arguments.fail("give the numbers of dead letters, or --all")
        self._name: str = arguments.name
        self._arguments = arguments
        self._config = config
        self._plugins = plugins
        self._missing = MissingPartitions([])

    async def choose(self) -> _Chosen:
        """The numbers of the existing dead letters that the arguments select."""
        async with open_backends(self._config, self._plugins) as backends:
            await check_configured(self._name, self._config, backends.partitions)
            return await self._choose(backends.partitions)

    async def _choose(self, partitions: Sequence[Partition]) -> _Chosen:
        if self._arguments.all:
            self._missing = MissingPartitions(partitions)
            all_numbers = await in_each(partitions, self._missing, self._numbers_in)
            return {name: numbers for name, numbers in all_numbers if numbers}
        chosen: dict[str, set[int]] = {}
        there: _Chosen = {}
        for given in self._arguments.numbers:
            partition = find_partition(given.partition, partitions, "dead letters")
            if partition.name not in there:
                _, there[partition.name] = await self._numbers_in(partition)
            numbers = [number for number in there[partition.name] if number in given.numbers]
            if not numbers:
                first, last = given.numbers[0], given.numbers[-1]
                shown = named(partition.name, first) + (f" to {last}" if last != first else "")
                raise CommandError(f"{self._name} has no dead letter {shown}")
            chosen.setdefault(partition.name, set()).update(numbers)
        return {name: sorted(found) for name, found in chosen.items()}

    async def _numbers_in(self, partition: Partition) -> tuple[str, list[int]]:
        return partition.name, [letter.number async for letter in letters_of(partition.store, self._name)]

    async def carry_out(self, kind: type[Retry | Discard], confirmed: _Chosen | None = None) -> None:
        """Give the command and wait for it. `confirmed` limits it to these dead letters."""
        name, arguments, verb = self._name, self._arguments, _VERBS[kind]
        given: list[Given] = []
        async with open_backends(self._config, self._plugins) as backends:
            await backends.recover()
            await check_configured(name, self._config, backends.partitions)
            feeder = make_feeder(name, self._config, self._plugins)
            chosen = await self._choose(backends.partitions)
            if confirmed is not None:
                both = {each: sorted({*chosen[each]} & {*confirmed.get(each, [])}) for each in chosen}
                chosen = {each: numbers for each, numbers in both.items() if numbers}
            partitions = [partition for partition in backends.partitions if partition.name in chosen]
            durables = [await read_durable(each.store, each.journal, name) for each in partitions]
            for durable in durables:
                check_ready(name, durable, wait=arguments.wait)
            is_all = arguments.all and confirmed is None
            for partition, durable in zip(partitions, durables, strict=True):
                numbers = chosen[partition.name]
                order = kind(last=numbers[-1], letters=None if is_all else tuple(numbers))
                number = await give_command(partition.store, name, order)
                given.append(Given(partition, number, numbers[-1], lambda progress: progress.at))
                given[-1].see(durable.progress)
        if not given or not arguments.wait:
            lines = [waiting(name, given) if given else f"{name} has no dead letters"]
            write_result(self._told(given, verb, chosen, [], None), lines=lines, as_json=arguments.json)
        else:
            bar = ProgressBar(sum(each.count for each in given), "dead letters processed", quiet=arguments.json)
            outcome = await Run(feeder, given, bar.show, bar.say).until_done(self._config, self._plugins)
            bar.close()
            async with open_backends(self._config, self._plugins) as backends:
                left = [
                    found
                    for partition in backends.partitions
                    if partition.name in chosen
                    async for found in _read(name, partition, chosen[partition.name])
                ]
            facts = self._told(given, verb, chosen, left, outcome)
            conclude(name, outcome, facts, _result(name, verb, _count(chosen), left), as_json=arguments.json)
        self._missing.check(f"no dead letters are {verb} there")

    def _told(
        self, given: Sequence[Given], verb: str, chosen: _Chosen, left: Sequence[_Found], outcome: Outcome | None
    ) -> dict[str, Any]:
        count = _count(chosen)
        numbers: dict[str, Any] = {"order": given[0].number if given else None}
        if given and given[0].partition.name:
            numbers = {"orders": [{"partition": each.partition.name, "order": each.number} for each in given]}
        return {
            "sink": self._name,
            **numbers,
            "letters": count,
            "done": not chosen or (outcome is not None and outcome.interrupted is None),
            verb: 0 if outcome is None else count - len(left),
            "dead": [_facts(self._name, found) for found in left],
        }


class _Found(NamedTuple):
    """A dead letter and the name of its partition."""

    partition: str
    letter: DeadLetter


def _count(chosen: _Chosen) -> int:
    return sum(map(len, chosen.values()))


async def _read(name: str, partition: Partition, numbers: Sequence[int] | None = None) -> AsyncIterator[_Found]:
    """All dead letters of a sink in a partition, or the letters with these numbers."""
    async for letter in letters_of(partition.store, name, numbers):
        yield _Found(partition.name, letter)


def _facts(name: str, found: _Found) -> dict[str, Any]:
    letter = found.letter
    head = read_head(bytes(letter.record))
    return {
        "sink": name,
        **({"partition": found.partition} if found.partition else {}),
        "number": letter.number,
        "at": times.format_time(letter.at),
        "type": letter.type,
        "key": head.key,
        "id": head.id,
        "attempts": letter.attempts,
        "position": letter.position,
        "receivedAt": times.format_time(letter.received_at),
        **({"omittedBytes": letter.omitted} if letter.omitted else {}),
        "reason": letter.reason,
    }


def _listing(letters: Sequence[_Found], width: int) -> Iterator[str]:
    rows = [("NUMBER", "WHEN", "TYPE", "KEY", "ID", "ATTEMPTS", "REASON")]
    for partition, letter in letters:
        head = read_head(bytes(letter.record))
        rows.append((
            named(partition, letter.number), times.format_time(letter.at)[:19] + "Z", printable(letter.type),
            cut(printable(head.key or "-"), max(_KEY, width // 4)), printable(head.id or "-"), str(letter.attempts), "",
        ))  # fmt: skip
    lines = [*table(rows, right=(0, 5))]
    # The room beside the widest line, which ends with the number of attempts.
    room = max(_REASON, width - max(map(len, lines)) - 2)
    yield lines[0]
    for line, found in zip(lines[1:], letters, strict=True):
        yield f"{line}  {cut(printable(found.letter.reason), room)}"


def _result(name: str, verb: str, count: int, left: Sequence[_Found]) -> Iterator[str]:
    gone = count - len(left)
    yield f"{gone} of {count} {verb}{f' by {name}' if verb == 'taken' else ''}"
    if left:
        yield f"{len(left)} {'is' if len(left) == 1 else 'are'} still dead:"
        yield from (
            f"  {named(partition, letter.number)}  {printable(letter.reason)}" for partition, letter in left[:_TOLD]
        )
        if len(left) > _TOLD:
            yield f"  and {len(left) - _TOLD} more: ingestd sinks dead-letters list {name}"


def _confirmed(question: str) -> bool:
    # asyncio's handler would only cancel the task, which cannot react while it waits for an answer.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(question)
        sys.stderr.flush()
        return sys.stdin.readline().strip().casefold() in {"y", "yes"}
    finally:
        signal.signal(signal.SIGINT, before)
