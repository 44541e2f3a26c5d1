"""Where the events of a batch begin and end, in a body that is not JSON because of what is inside some of them.

Only strings and brackets are looked at, so an event may hold anything that leaves these in order: halves of surrogate
pairs, bytes that are not UTF-8, words and numbers that JSON does not know, any depth. The time goes by the length of
the body alone, whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["SplitBatch", "split_batch"]

_MOST_RUNS = 100_000  # of brackets, that are looked at one by one: each takes a microsecond or two
_SPACE = b" \t\n\r"


def _nested(levels: int) -> bytes:
    """A pattern of text with strings, and with containers in one another, of so many levels.

    It is possessive all through, so text is read again only where it has more levels: then once for each.
    """
    inner = rb"|[\[{]" + _nested(levels - 1) + rb"[\]}]" if levels else b""
    return rb'(?:[^"\[\]{}]++|' + _STRING + inner + rb")*+"


_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_LEVELS = 4  # of most events: brackets that are in one another so often need no look from Python
_CONTAINER = rb"[\[{]" + _nested(_LEVELS - 1) + rb"[\]}]"

_start = re.compile(rb"[ \t\n\r]*+\{").match
_events = re.compile(rb'"events"[ \t\n\r]*+:[ \t\n\r]*+\[').match
_members = re.compile(
    rb'(?:(?!"events"[ \t\n\r]*+:[ \t\n\r]*+\[)(?:[^"\[\]{}]++|' + _STRING + rb"|" + _CONTAINER + rb"))*+", re.DOTALL
).match
_element = re.compile(rb'(?:[^",\[\]{}]++|' + _STRING + rb"|" + _CONTAINER + rb")*+", re.DOTALL).match
_brackets = re.compile(_nested(_LEVELS) + rb"([\[{]++|[\]}]++)", re.DOTALL).match


class SplitBatch(NamedTuple):
    envelope: bytes
    """The body with no events in it."""
    events: list[bytes]


class _Unclear(Exception):
    """It cannot be told where an event ends."""


def split_batch(body: bytes, most: int) -> SplitBatch | None:
    """The events of a batch, each as it stands in the body; None where it cannot be told where one ends.

    Whether envelope and events are JSON is not looked at. Beyond `most` events no more are looked for.
    """
    scan = _Scan(body)
    events: list[bytes] = []
    try:
        start = end = scan.find_events()
        for begin, end in scan.elements(start):
            events.append(body[begin:end].strip(_SPACE))
            if len(events) > most:
                break
    except _Unclear:
        return None
    return SplitBatch(body[:start] + body[end:], [] if events == [b""] else events)


class _Scan:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._runs = _MOST_RUNS

    def find_events(self) -> int:
        """The place behind the bracket that opens the array of events."""
        match = _start(self._body)
        if match is None:
            raise _Unclear
        at = match.end()
        while True:
            at = _behind(_members(self._body, at))
            found = _events(self._body, at)
            if found is not None:
                return found.end()
            at = self._behind_container(at)

    def elements(self, at: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each element of the array whose bracket is before `at`."""
        begin = at
        while True:
            at = _behind(_element(self._body, at))
            sign = self._body[at : at + 1]
            if sign in {b",", b"]"}:
                yield begin, at
                if sign == b"]":
                    return
                begin = at = at + 1
            else:
                at = self._behind_container(at)

    def _behind_container(self, at: int) -> int:
        """The place behind the object or array that begins at `at`."""
        if self._body[at : at + 1] not in {b"[", b"{"}:
            raise _Unclear
        depth, at = 1, at + 1
        while depth:
            match = _brackets(self._body, at)
            self._runs -= 1
            if match is None or not self._runs:
                raise _Unclear
            at, run = match.end(), match[1]
            if run[0] in b"[{":
                depth += len(run)
            else:
                closed = min(len(run), depth)
                depth -= closed
                at -= len(run) - closed
        return at


def _behind(match: re.Match[bytes] | None) -> int:
    assert match is not None  # the pattern matches nothing too
    return match.end()
