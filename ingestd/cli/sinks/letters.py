"""`ingestd sinks dead-letters list|show|retry|discard`: the records that a sink did not take."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.output import columns, write
from ingestd.api.store import Store
from ingestd.api.terminal import cut, printable, table
from ingestd.config import Config
from ingestd.delivery.dead_letters import DeadLetter, read_letter, read_letters
from ingestd.delivery.operator_commands import Discard, Retry, give_command
from ingestd.hooks.loader import Plugins
from ingestd.storage.backends import Backends, open_backends

from .durable import read_durable, read_progress
from .names import check_configured, check_known, known_sinks
from .progress_bar import ProgressBar
from .running import Outcome, Run, check_ready, leave, make_feeder, waiting

__all__ = ["discard", "list_letters", "parse_numbers", "retry", "show"]

_KEY = 30  # columns for an event key on a narrow terminal
_REASON = 20  # columns for a reason on a narrow terminal
_TOLD = 20  # remaining dead letters that are listed for people
_VERBS: dict[type[Retry | Discard], str] = {Retry: "taken", Discard: "discarded"}


def parse_numbers(text: str) -> range:
    """The type of an argument: one number, or a range such as `3-7`."""
    match = re.fullmatch(r"([1-9][0-9]{0,15})(?:-([1-9][0-9]{0,15}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise argparse.ArgumentTypeError("expected the number of a dead letter, or a range such as 3-7")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


async def list_letters(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    async with open_backends(config, plugins) as backends:
        await _check_known(arguments.name, config, backends)
        if arguments.json:
            async for letter in _read(arguments.name, backends.store):
                write([json.dumps(_facts(arguments.name, letter))])
            return
        letters = [letter async for letter in _read(arguments.name, backends.store)]
    if letters:
        write(_listing(letters, columns()))
    else:
        write([f"{arguments.name} has no dead letters"])


async def show(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    name, number = arguments.name, arguments.number
    async with open_backends(config, plugins) as backends:
        await _check_known(name, config, backends)
        letter = await read_letter(backends.store.begin(times.now()), name, number)
    if letter is None:
        raise CommandError(f"{name} has no dead letter {number}")
    facts, record = _facts(name, letter), msgspec.json.decode(letter.record)
    if arguments.json:
        write([json.dumps({**facts, "record": record})])
    else:
        write(table([(f"{fact}:", printable(str(value))) for fact, value in facts.items()]))
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
        if confirmed and not _confirmed(f"Discard {len(confirmed)} dead letters of {arguments.name} for good? [y/N] "):
            raise CommandError("nothing was discarded")
    await order.carry_out(Discard, confirmed)


class _Order:
    """An operator command for some dead letters."""

    def __init__(self, arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
        if bool(arguments.numbers) is arguments.all:
            arguments.fail("give the numbers of dead letters, or --all")
        self._name: str = arguments.name
        self._arguments = arguments
        self._config = config
        self._plugins = plugins

    async def choose(self) -> list[int]:
        """The numbers of the existing dead letters that the arguments select."""
        async with open_backends(self._config, self._plugins) as backends:
            await check_configured(self._name, self._config, backends.journal)
            return await self._choose(backends.store)

    async def _choose(self, store: Store) -> list[int]:
        there = [letter.number async for letter in _read(self._name, store)]
        if self._arguments.all:
            return there
        chosen: set[int] = set()
        for numbers in self._arguments.numbers:
            found = [number for number in there if number in numbers]
            if not found:
                shown = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
                raise CommandError(f"{self._name} has no dead letter {shown}")
            chosen.update(found)
        return sorted(chosen)

    async def carry_out(self, kind: type[Retry | Discard], confirmed: Sequence[int] | None = None) -> None:
        """Give the command and wait for it. `confirmed` limits it to these dead letters."""
        name, arguments, verb = self._name, self._arguments, _VERBS[kind]
        async with open_backends(self._config, self._plugins) as backends:
            await backends.recover()
            await check_configured(name, self._config, backends.journal)
            feeder = make_feeder(name, self._config, self._plugins)
            durable = await read_durable(backends.store, backends.journal, name)
            chosen = await self._choose(backends.store)
            if confirmed is not None:
                chosen = sorted({*chosen} & {*confirmed})
            if not chosen:
                told = json.dumps(self._told(None, verb, [], [], None))
                write([told] if arguments.json else [f"{name} has no dead letters"])
                return
            check_ready(name, durable, wait=arguments.wait)
            is_all = arguments.all and confirmed is None
            order = kind(last=chosen[-1], letters=None if is_all else tuple(chosen))
            number = await give_command(backends.store, name, order)
        if not arguments.wait:
            told = json.dumps(self._told(number, verb, chosen, [], None))
            write([told] if arguments.json else [waiting(name, number)])
            return
        bar = ProgressBar(chosen[-1], "dead letters processed", quiet=arguments.json)
        run = Run(feeder, number, durable, lambda progress: bar.show(progress.at), bar.say)
        outcome = await run.until_done(self._config, self._plugins)
        bar.close()
        async with open_backends(self._config, self._plugins) as backends:
            left = [letter async for letter in _read(name, backends.store, chosen)]
        if arguments.json:
            write([json.dumps(self._told(number, verb, chosen, left, outcome))])
        elif outcome.interrupted is None:
            write(_result(name, verb, len(chosen), left))
        leave(name, outcome, quiet=arguments.json)

    def _told(
        self, number: int | None, verb: str, chosen: Sequence[int], left: Sequence[DeadLetter], outcome: Outcome | None
    ) -> dict[str, Any]:
        return {
            "sink": self._name,
            "order": number,
            "letters": len(chosen),
            "done": not chosen or (outcome is not None and outcome.interrupted is None),
            verb: 0 if outcome is None else len(chosen) - len(left),
            "dead": [_facts(self._name, letter) for letter in left],
        }


async def _check_known(name: str, config: Config, backends: Backends) -> None:
    check_known(name, await known_sinks(config, backends.journal))


async def _read(name: str, store: Store, numbers: Sequence[int] | None = None) -> AsyncIterator[DeadLetter]:
    """All dead letters of a sink, or the letters with these numbers."""
    progress = await read_progress(store, name)
    if progress is not None:
        async for letter in read_letters(store.begin(times.now()), name, 0, progress.letters, numbers):
            yield letter


class _Head(msgspec.Struct):
    id: str | None = None
    key: str | None = None


_decode_head = msgspec.json.Decoder(_Head).decode


def _facts(name: str, letter: DeadLetter) -> dict[str, Any]:
    head = _decode_head(letter.record)
    return {
        "sink": name,
        "number": letter.number,
        "at": times.format_time(letter.at),
        "type": letter.type,
        "key": head.key,
        "id": head.id,
        "attempts": letter.attempts,
        "position": letter.position,
        "receivedAt": times.format_time(letter.received_at),
        "reason": letter.reason,
    }


def _listing(letters: Sequence[DeadLetter], width: int) -> Iterator[str]:
    rows = [("NUMBER", "WHEN", "TYPE", "KEY", "ID", "ATTEMPTS", "REASON")]
    for letter in letters:
        head = _decode_head(letter.record)
        rows.append((
            str(letter.number), times.format_time(letter.at)[:19] + "Z", printable(letter.type),
            cut(printable(head.key or "-"), max(_KEY, width // 4)), printable(head.id or "-"), str(letter.attempts), "",
        ))  # fmt: skip
    lines = [*table(rows, right=(0, 5))]
    # The room beside the widest line, which ends with the number of attempts.
    room = max(_REASON, width - max(map(len, lines)) - 2)
    yield lines[0]
    for line, letter in zip(lines[1:], letters, strict=True):
        yield f"{line}  {cut(printable(letter.reason), room)}"


def _result(name: str, verb: str, count: int, left: Sequence[DeadLetter]) -> Iterator[str]:
    gone = count - len(left)
    yield f"{gone} of {count} {verb}{f' by {name}' if verb == 'taken' else ''}"
    if left:
        yield f"{len(left)} {'is' if len(left) == 1 else 'are'} still dead:"
        yield from (f"  {letter.number}  {printable(letter.reason)}" for letter in left[:_TOLD])
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
