"""JSON pointers with wildcards: members of a record that an option names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

__all__ = ["ROOTS", "Change", "MemberPointer", "change_members"]

ROOTS = ("data", "traits", "context", "extra")
_INDEX = re.compile("0|[1-9][0-9]*")


class MemberPointer(str):
    """A JSON pointer (RFC 6901) into a record, such as `/data/card`. `*` stands for each member or element."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> MemberPointer:
        """Raises `ValueError`."""
        expected = "expected a JSON pointer below /data, /traits, /context or /extra, such as /data/card"
        if not isinstance(text, str) or not text.startswith("/"):
            raise ValueError(expected)
        root, *tokens = text[1:].split("/")
        if root not in ROOTS:
            near = get_close_matches(root, ROOTS, n=1)
            hint = f"; did you mean {'/'.join(['', near[0], *tokens])}?" if near else ""
            raise ValueError(f"{expected}{hint}")
        if not tokens:
            raise ValueError(f"{expected}; {text}/* is everything in it")
        if re.search("~(?![01])", text):
            raise ValueError("expected a JSON pointer, in which ~0 stands for ~ and ~1 for /")
        return cls(text)

    @property
    def root(self) -> str:
        """The member of the record that it leads into."""
        return self.split("/", 2)[1]

    @property
    def tokens(self) -> tuple[str, ...]:
        """The names behind the root."""
        return tuple(token.replace("~1", "/").replace("~0", "~") for token in self.split("/")[2:])

    def meets(self, other: MemberPointer) -> bool:
        """Whether both may lead to the same member."""
        mine, others = self.tokens, other.tokens
        return (
            self.root == other.root
            and len(mine) == len(others)
            and all(one == another or "*" in {one, another} for one, another in zip(mine, others, strict=True))
        )


Change = Callable[[Any, Any], None]
"""Changes one member or element: of which container, and under which name or index."""


def change_members(container: Any, tokens: tuple[str, ...], change: Change) -> None:
    """Change what a pointer's tokens lead to. An element comes before those in front of it, and so may be deleted."""
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
        # An index of more digits than the length is beyond it, and may be too long to be read.
        if len(name) <= 10 and _INDEX.fullmatch(name) and int(name) < len(container):
            return (int(name),)
    return ()
