"""Finds where the events of a batch begin and end, in a body that is not JSON because some events are not.

Only strings and brackets are parsed. So an event may have anything that leaves these in order: halves of surrogate
pairs, bytes that are not UTF-8, words and numbers that JSON does not know, any depth. The time depends on the length of
the body alone: up to a third of a second for 4 MiB. So the body is read in steps of some milliseconds, and the event
loop runs in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from ingestd.scheduling.demand import Steps

__all__ = ["SplitBatch", "split_batch"]

_STEP = 8 * 1024  # bytes; a step takes up to one and a half milliseconds
_MOST_RUNS = 100_000  # runs of brackets that Python handles one by one: each takes a microsecond or two
_SPACE = b" \t\n\r"


def _nested(levels: int) -> bytes:
    """A pattern for text with strings and containers that are nested up to so many levels.

    It is possessive throughout. So text is read again only where it has more levels, and then once for each level. Each
    repeated group has an empty alternative, since Python before 3.11.5 else goes on in the middle of a turn that fails.
    """
    inner = rb"|[\[{]" + _nested(levels - 1) + rb"[\]}]" if levels else b""
    return rb'(?:[^"\[\]{}]++|' + _STRING + inner + rb"|)*+"


_STRING_TEXT = rb'(?:[^"\\]++|\\.|)*+'
_STRING = rb'"' + _STRING_TEXT + rb'"'
_LEVELS = 4  # levels of nesting in most events; Python need not handle their brackets
_CONTAINER = rb"[\[{]" + _nested(_LEVELS - 1) + rb"[\]}]"

_Match = Callable[[bytes, int, int], "re.Match[bytes] | None"]

_start = re.compile(rb"[ \t\n\r]*+\{").match
_element: _Match = re.compile(rb'(?:[^",\[\]{}]++|' + _STRING + rb"|" + _CONTAINER + rb"|)*+", re.DOTALL).match
_brackets: _Match = re.compile(_nested(_LEVELS) + rb"([\[{]++|[\]}]++|)", re.DOTALL).match
_string_text: _Match = re.compile(_STRING_TEXT, re.DOTALL).match


class _Patterns(NamedTuple):
    """The patterns for the member of the envelope that is the array."""

    name: bytes
    """The name with its quotation marks."""
    array: _Match
    """Matches the name, and the bracket that opens its array."""
    members: _Match
    """Matches the members before the name."""


@lru_cache(maxsize=64)
def _patterns(member: str) -> _Patterns:
    name = f'"{member}"'.encode()
    escaped = re.escape(name)
    array = re.compile(escaped + rb"[ \t\n\r]*+:[ \t\n\r]*+\[")
    members = re.compile(rb'(?:[^"\[\]{}]++|(?!' + escaped + rb")" + _STRING + rb"|" + _CONTAINER + rb"|)*+", re.DOTALL)
    return _Patterns(name, array.match, members.match)


class SplitBatch(NamedTuple):
    envelope: bytes
    """The body with no events in it."""
    events: list[bytes]


class _Unclear(Exception):
    """The end of an event cannot be found."""


async def split_batch(
    body: bytes, most: int, *, member: str = "events", step: int = _STEP, steps: Steps | None = None
) -> SplitBatch | None:
    """Split a batch into its events, each with its bytes as sent. None if the end of an event cannot be found.

    `member` names the array of the events. Envelope and events need not be JSON. The search ends when there are more
    than `most` events. `step` is the number of bytes read in one step; it changes no result.
    """
    scan = _Scan(body, member, step, steps or Steps())
    try:
        start = await scan.find_array()
        events, end = await scan.split_array(start, most)
    except _Unclear:
        return None
    return SplitBatch(body[:start] + body[end:], [] if events == [b""] else events)


class _Scan:
    def __init__(self, body: bytes, member: str, step: int, steps: Steps) -> None:
        self._body = body
        self._patterns = _patterns(member)
        self._step = step
        self._runs = _MOST_RUNS
        self._steps = steps

    async def find_array(self) -> int:
        """The index behind the bracket that opens the array of events."""
        match = _start(self._body)
        if match is None:
            raise _Unclear
        at = match.end()
        name, array, members = self._patterns
        while True:
            at = await self._skip(members, at)
            if not self._body.startswith(name, at):
                at = await self._behind_value(at)
                continue
            opened = array(self._body, at, len(self._body))
            if opened is not None:
                return opened.end()
            at += len(name)
            self._count_run()

    async def split_array(self, at: int, most: int) -> tuple[list[bytes], int]:
        """The elements of the array that opens before `at`, at most `most` + 1 of them, and the index of its end."""
        events = []
        begin = at
        while True:
            at = await self._skip(_element, at)
            sign = self._body[at : at + 1]
            if sign not in {b",", b"]"}:
                at = await self._behind_value(at)
                continue
            events.append(self._body[begin:at].strip(_SPACE))
            if sign == b"]" or len(events) > most:
                return events, at
            begin = at = at + 1

    async def _skip(self, match: _Match, at: int) -> int:
        """The index of the first character, or of the start of a value, that the pattern does not match."""
        while True:
            end = at + self._step
            at = _behind(match(self._body, at, end))
            if at >= len(self._body):
                raise _Unclear
            await self._steps.give_way()
            if at < end:
                return at

    async def _behind_value(self, at: int) -> int:
        """The index behind the string, object or array that begins at `at`, of any length and depth."""
        if self._body[at : at + 1] == b'"':
            return await self._behind_string(at)
        if self._body[at : at + 1] not in {b"[", b"{"}:
            raise _Unclear
        return await self._behind_container(at)

    async def _behind_container(self, at: int) -> int:
        """The index behind the object or array that begins at `at`."""
        depth, at = 1, at + 1
        while depth:
            match = _brackets(self._body, at, at + self._step)
            at = _behind(match)
            self._count_run()
            await self._steps.give_way()
            assert match is not None
            run = match[1]
            if not run:  # the end of the step, or a string that crosses it
                if at >= len(self._body):
                    raise _Unclear
                if self._body[at : at + 1] == b'"':
                    at = await self._behind_string(at)
            elif run[0] in b"[{":
                depth += len(run)
            else:
                closed = min(len(run), depth)
                depth -= closed
                at -= len(run) - closed
        return at

    async def _behind_string(self, at: int) -> int:
        """The index behind the string that begins at `at`, which may be longer than a step."""
        at += 1
        while True:
            at = _behind(_string_text(self._body, at, at + self._step))
            if self._body[at : at + 1] == b'"':
                return at + 1
            if at + 1 >= len(self._body):
                raise _Unclear
            await self._steps.give_way()

    def _count_run(self) -> None:
        self._runs -= 1
        if not self._runs:
            raise _Unclear


def _behind(match: re.Match[bytes] | None) -> int:
    assert match is not None  # the pattern matches the empty string, too
    return match.end()
