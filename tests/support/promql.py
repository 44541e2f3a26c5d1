"""The series and labels in an expression of PromQL. Only the syntax of ingestd's rules is supported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Selector", "grouped", "selectors"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\d[\w.]*|[A-Za-z_:][\w:]*|[=!~]+|\S')
_GROUPS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = _GROUPS | {"and", "or", "unless", "offset", "bool", "Inf", "sum", "max", "min", "count", "avg", "topk"}


class Selector(NamedTuple):
    metric: str
    matches: tuple[tuple[str, str], ...]
    """Each label with its value or pattern."""


def _is_name(token: str) -> bool:
    return re.match("[A-Za-z_:]", token) is not None


def _split(expression: str) -> tuple[list[Selector], list[str]]:
    tokens = [*_TOKEN.findall(expression), ""]
    found: list[Selector] = []
    labels: list[str] = []
    at = 0
    while at < len(tokens):
        token, following = tokens[at], tokens[min(at + 1, len(tokens) - 1)]
        at += 1
        if token in _GROUPS and following == "(":
            end = tokens.index(")", at)
            labels += [label for label in tokens[at + 1 : end] if label != ","]
            at = end
        elif _is_name(token) and token not in _WORDS and following != "(":
            matches: list[str] = []
            if following == "{":
                end = tokens.index("}", at)
                matches, at = [part for part in tokens[at + 1 : end] if part != ","], end
            pairs = zip(matches[::3], matches[2::3], strict=True)
            found.append(Selector(token, tuple((label, value.strip('"')) for label, value in pairs)))
    return found, labels


def selectors(expression: str) -> Iterator[Selector]:
    """The series of the expression: all names except functions and keywords."""
    yield from _split(expression)[0]


def grouped(expression: str) -> list[str]:
    """The labels in its `by`, `without`, `on`, `ignoring`, `group_left` and `group_right`."""
    return _split(expression)[1]
