"""The dead letters of a sink for the operators' page, newest first, with the commands to retry or discard them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.errors import BadRequest, NotFound
from ingestd.api.store import State
from ingestd.delivery.dead_letters import DeadLetter, newest_letters
from ingestd.delivery.progress import PROGRESS, Progress
from ingestd.http.operators import Shown
from ingestd.support.record_head import read_head

from .disclosure import Disclosure, shortened
from .journeys import SearchQueue
from .recent_lines import presentable

__all__ = ["DeadLetterPages", "LetterBound", "sinks_command"]

_PAGE = 50  # letters


class LetterBound(NamedTuple):
    """Where a page of letters begins: below a number. Each of several partitions has its own numbers."""

    partition: str
    number: int


class DeadLetterPages:
    """`disclosure` returns what the page may show at present. `config` is the path of the configuration.

    The letters of several partitions follow one another, in the order of the partitions.
    """

    def __init__(self, partitions: Sequence[Partition], config: str, *, disclosure: Callable[[], Disclosure]) -> None:
        self._partitions = partitions
        self._config = config
        self._disclosure = disclosure
        self._shown = Shown()
        self._queue = SearchQueue()

    def show(self, shown: Shown) -> None:
        """Replace the sinks, for example after a reload."""
        self._shown = shown

    async def render(self, sink: str | None, before: LetterBound | None) -> bytes:
        """All sinks, and a page of letters below `before`, as JSON.

        Without `sink`, it is the sink with the most dead letters. Raises `BadRequest`, `NotFound`, `Unavailable`.
        """
        async with self._queue.wait():
            missing = MissingPartitions(self._partitions)
            parts = await self._read_parts(missing)
            rows = [self._sink(each.sink_name, parts) for each in self._shown.sinks]
            if sink is None:
                sink = max(rows, key=lambda row: row["deadLetters"], default={"sink": None})["sink"]
            if sink is not None and sink not in [row["sink"] for row in rows]:
                raise NotFound("There is no sink of this name.")
            letters, following = ([], None) if sink is None else await self._letters(sink, parts, before)
            page: dict[str, Any] = {"sinks": rows, "sink": sink, "letters": letters, "next": following}
            if missing.reasons:
                page["missing"] = missing.reasons
            return msgspec.json.encode(page)

    async def _read_parts(self, missing: MissingPartitions) -> list[_Part]:
        names = [each.sink_name for each in self._shown.sinks]
        parts = []
        for partition in self._partitions:
            with missing.tolerating(partition):
                state = partition.store.begin(times.now())
                found = await asyncio.gather(*(PROGRESS.load(state, name) for name in names))
                progress = dict(zip(names, found, strict=True))
                parts.append(_Part(partition.name, state, {name: each for name, each in progress.items() if each}))
        return parts

    async def _letters(
        self, sink: str, parts: Sequence[_Part], before: LetterBound | None
    ) -> tuple[list[dict[str, Any]], int | str | None]:
        """A page of letters, and the bound of the next one."""
        names = [part.name for part in parts]
        if before is not None:
            if before.partition not in names:
                raise BadRequest("There is no such partition, or it is out of reach.")
            parts = parts[names.index(before.partition) :]
        letters: list[dict[str, Any]] = []
        for part in parts:
            progress = part.progress.get(sink)
            if progress is None or not progress.dead:
                continue
            last = progress.letters
            if before is not None and part.name == before.partition:
                last = min(last, before.number - 1)
            if len(letters) == _PAGE:
                return letters, _bound(part.name, last + 1)
            found, following = await newest_letters(part.state, sink, last, _PAGE - len(letters))
            letters += [self._letter(sink, part.name, letter) for letter in found]
            if following is not None:
                return letters, _bound(part.name, following)
        return letters, None

    def _sink(self, name: str, parts: Sequence[_Part]) -> dict[str, Any]:
        progress = [part.progress[name] for part in parts if name in part.progress]
        return {
            "sink": name,
            "type": self._shown.types.get(name),
            "deadLetters": sum(each.dead for each in progress),
            "newest": max((each.letters for each in progress), default=0),
            "commands": {
                "status": self._command("status", name),
                "list": self._command("dead-letters", "list", name),
                "retry": self._command("dead-letters", "retry", name, "--all"),
                "discard": self._command("dead-letters", "discard", name, "--all"),
            },
        }

    def _letter(self, sink: str, partition: str, letter: DeadLetter) -> dict[str, Any]:
        head = read_head(bytes(letter.record))
        number = str(_bound(partition, letter.number))
        return {
            **({"partition": partition} if partition else {}),
            "number": letter.number,
            "at": times.format_time(letter.at),
            "type": letter.type,
            "key": None if head.key is None else shortened(head.key),
            "recordId": None if head.id is None else shortened(head.id),
            "receivedAt": times.format_time(letter.received_at),
            "attempts": letter.attempts,
            "position": letter.position,
            "bytes": letter.record_size,
            "reason": shortened(letter.reason) if self._disclosure().level == "all" else presentable(letter.reason),
            "commands": {
                "show": self._command("dead-letters", "show", sink, number),
                "retry": self._command("dead-letters", "retry", sink, number),
                "discard": self._command("dead-letters", "discard", sink, number),
            },
        }

    def _command(self, *words: str) -> str:
        return sinks_command(self._config, *words)


def sinks_command(config: str, *words: str) -> str:
    """The line for a shell that runs `ingestd sinks …` with the configuration of this path."""
    return shlex.join(["ingestd", "sinks", *words, "--config", config])


class _Part(NamedTuple):
    """A partition within reach."""

    name: str
    state: State
    progress: Mapping[str, Progress]
    """By the name of the sink, without sinks that have had no record."""


def _bound(partition: str, number: int) -> int | str:
    """A number of a partition, as the page and the commands take it."""
    return f"{partition}:{number}" if partition else number
