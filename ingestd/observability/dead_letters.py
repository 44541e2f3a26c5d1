"""The dead letters of a sink for the operators' page, newest first, with the commands to retry or discard them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import msgspec

from ingestd.api import times
from ingestd.api.errors import NotFound
from ingestd.api.store import State, Store
from ingestd.delivery.dead_letters import DeadLetter, newest_letters
from ingestd.delivery.progress import load_progress
from ingestd.observability.dashboard import Shown
from ingestd.observability.disclosure import Disclosure
from ingestd.observability.journeys.names import shortened
from ingestd.observability.journeys.turns import Turns
from ingestd.observability.logs.recent import presentable
from ingestd.storage.record_selection import RecordHead, read_head

__all__ = ["DeadLetterPages"]

_PAGE = 50  # letters


class DeadLetterPages:
    """`disclosure` returns what the page may show at present. `config` is the path of the configuration."""

    def __init__(self, store: Store, config: str, *, disclosure: Callable[[], Disclosure]) -> None:
        self._store = store
        self._config = config
        self._disclosure = disclosure
        self._shown = Shown()
        self._turns = Turns()

    def show(self, shown: Shown) -> None:
        """Replace the sinks, for example after a reload."""
        self._shown = shown

    async def render(self, sink: str | None, before: int | None) -> bytes:
        """All sinks, and a page of letters with numbers below `before`, as JSON.

        Without `sink`, it is the sink with the most dead letters. Raises `NotFound`, `Unavailable`.
        """
        async with self._turns.turn():
            state = self._store.begin(times.now())
            rows = [await self._sink(each.sink_name, state) for each in self._shown.sinks]
            if sink is None:
                sink = max(rows, key=lambda row: row["deadLetters"], default={"sink": None})["sink"]
            chosen = next((row for row in rows if row["sink"] == sink), None)
            if sink is not None and chosen is None:
                raise NotFound("There is no sink of this name.")
            letters, following = [], None
            if sink is not None and chosen is not None and chosen["deadLetters"]:
                last = min(chosen["newest"], before - 1 if before is not None else chosen["newest"])
                found, following = await newest_letters(state, sink, last, _PAGE)
                letters = [self._letter(sink, letter) for letter in found]
            return msgspec.json.encode({"sinks": rows, "sink": sink, "letters": letters, "next": following})

    async def _sink(self, name: str, state: State) -> dict[str, Any]:
        progress = await load_progress(state, name)
        return {
            "sink": name,
            "type": self._shown.types.get(name),
            "deadLetters": 0 if progress is None else progress.dead,
            "newest": 0 if progress is None else progress.letters,
            "commands": {
                "status": self._command("status", name),
                "list": self._command("dead-letters", "list", name),
                "retry": self._command("dead-letters", "retry", name, "--all"),
                "discard": self._command("dead-letters", "discard", name, "--all"),
            },
        }

    def _letter(self, sink: str, letter: DeadLetter) -> dict[str, Any]:
        head = read_head(bytes(letter.record)) or RecordHead()
        number = str(letter.number)
        return {
            "number": letter.number,
            "at": times.format_time(letter.at),
            "type": letter.type,
            "key": shortened(head.key) if isinstance(head.key, str) else None,
            "recordId": shortened(head.id) if isinstance(head.id, str) else None,
            "receivedAt": times.format_time(letter.received_at),
            "attempts": letter.attempts,
            "position": letter.position,
            "bytes": letter.size,
            "reason": shortened(letter.reason) if self._disclosure().level == "all" else presentable(letter.reason),
            "commands": {
                "show": self._command("dead-letters", "show", sink, number),
                "retry": self._command("dead-letters", "retry", sink, number),
                "discard": self._command("dead-letters", "discard", sink, number),
            },
        }

    def _command(self, *words: str) -> str:
        return shlex.join(["ingestd", "sinks", *words, "--config", self._config])
