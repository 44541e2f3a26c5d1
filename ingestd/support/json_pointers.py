"""JSON pointers with wildcards, by which an option names members of a record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

__all__ = ["FIXED", "ROOTS", "Change", "MemberPointer", "RecordPointer", "change_members"]

ROOTS = ("data", "traits", "context", "extra")
_MEMBERS = (
    *ROOTS, "type", "tenant", "endpoint", "signed", "receivedAt", "timestamp", "key", "anonymousId", "anonymousIds",
    "userId", "sessionId", "sessionIsNew", "dispatchId", "messageId", "linked", "import", "schema",
    "decidedAt", "orderId", "orderAt", "orderEventId", "model", "value", "touchpoint", "touchpoints", "credits",
    "attributionId", "reason", "cause", "ignored", "erasedAt",
)  # fmt: skip
FIXED = frozenset(["id", "receivedAt", "decidedAt", "erasedAt", "import"])
"""Members of a record that no sink may change: by them sinks know it again, and date it."""
_INDEX = re.compile("0|[1-9][0-9]*")


class MemberPointer(str):
    """A JSON pointer (RFC 6901) into a record, such as `/data/card`. `*` stands for each member or element."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> MemberPointer:
        """Raises `ValueError`."""
        expected = "expected a JSON pointer below /data, /traits, /context or /extra, such as /data/card"
        root, *tokens = _tokens(text, expected)
        if root not in ROOTS:
            near = get_close_matches(root, ROOTS, n=1)
            hint = f"; did you mean {'/'.join(['', near[0], *tokens])}?" if near else ""
            raise ValueError(f"{expected}{hint}")
        if not tokens:
            raise ValueError(f"{expected}; {text}/* stands for everything in {text}")
        return cls(text)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The names from the record on, unescaped."""
        return tuple(token.replace("~1", "/").replace("~0", "~") for token in self[1:].split("/"))

    def meets(self, other: MemberPointer) -> bool:
        """Whether both pointers may name the same member."""
        mine, others = self.tokens, other.tokens
        return len(mine) == len(others) and all(
            one == another or "*" in {one, another} for one, another in zip(mine, others, strict=True)
        )


class RecordPointer(MemberPointer):
    """A JSON pointer to any member of a record but its id, such as `/userId` or `/touchpoint/name`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> RecordPointer:
        """Raises `ValueError`. A record of a plugin may have any members, so only a near miss is refused."""
        root, *tokens = _tokens(text, "expected a JSON pointer into the record, such as /traits/email")
        if root in FIXED or root == "*":
            raise ValueError("expected another member than the id and the time of receipt, which must stay")
        near = get_close_matches(root, _MEMBERS, n=1, cutoff=0.8)
        if near and root not in _MEMBERS:
            raise ValueError(f"no record has {root}; did you mean {'/'.join(['', near[0], *tokens])}?")
        return cls(text)


def _tokens(text: Any, expected: str) -> list[str]:
    if not isinstance(text, str) or not text.startswith("/"):
        raise ValueError(expected)
    if re.search("~(?![01])", text):
        raise ValueError("expected a JSON pointer, in which ~0 stands for ~ and ~1 for /")
    return text[1:].split("/")


Change = Callable[[Any, Any], None]
"""A function that changes one member or element, given its container and its name or index."""


def change_members(container: Any, tokens: tuple[str, ...], change: Change) -> None:
    """Change each member or element that a pointer's tokens name.

    Elements of an array are changed from the last to the first, so that `change` may delete them.
    """
    name, rest = tokens[0], tokens[1:]
    for key in _keys(container, name):
        if rest:
            change_members(container[key], rest, change)
        else:
            change(container, key)


def _keys(container: Any, name: str) -> Iterable[Any]:
    if isinstance(container, dict):
        if name == "*":
            return [*container]
        return (name,) if name in container else ()
    if isinstance(container, list):
        if name == "*":
            return range(len(container) - 1, -1, -1)
        # An index of more than ten digits is beyond any array, and Python may refuse to convert it.
        if len(name) <= 10 and _INDEX.fullmatch(name) and int(name) < len(container):
            return (int(name),)
    return ()
