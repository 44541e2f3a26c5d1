"""Recognises crawlers by their user agent, with the patterns of the package crawler-user-agents."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["CrawlerList", "missing_packages"]

_PACKAGES = {"crawleruseragents": "crawler-user-agents", "re2": "google-re2"}
_LONGEST = 256
"""Characters of a user agent that are looked at: a crawler's name is within them."""
_REMEMBERED = 4096
"""User agents. At their longest they take two megabytes."""


def missing_packages() -> list[str]:
    return [package for module, package in _PACKAGES.items() if find_spec(module) is None]


class CrawlerList:
    """The user agents of crawlers. Texts in `allow` and `deny` come before the package's patterns, `allow` first.

    There are 1,500 patterns. RE2 tries all at once, and reads a character once: 4 to 9 µs for a user agent that is
    new, where Python's `re` takes 600. A stranger may send another user agent with each request.
    """

    def __init__(self, allow: Sequence[str], deny: Sequence[str]) -> None:
        self._allow = allow
        self._deny = deny
        self._recall: Callable[[str], str | None] = lru_cache(maxsize=_REMEMBERED)(self._find)

    def find_name(self, user_agent: str) -> str | None:
        """The crawler's name; None for a user agent that is no crawler's."""
        return self._recall(user_agent[:_LONGEST])

    def load(self) -> None:
        """Read and compile the patterns, which takes some 50 ms. The first user agent would wait for it."""
        _ = self._patterns

    @cached_property
    def _patterns(self) -> tuple[Any, list[str]]:
        """All of them compiled as one, and each as a text."""
        re2: Any = import_module("re2")  # it has no types, and commands do without it
        data: Any = import_module("crawleruseragents")
        patterns: list[str] = [entry["pattern"] for entry in data.CRAWLER_USER_AGENTS_DATA]
        options = re2.Options()
        options.log_errors = False  # it would write to standard error itself
        compiled = re2.Set.SearchSet(options)
        for pattern in patterns:
            compiled.Add(pattern)
        compiled.Compile()
        return compiled, patterns

    def _find(self, user_agent: str) -> str | None:
        if any(text in user_agent for text in self._allow):
            return None
        for text in self._deny:
            if text in user_agent:
                return text
        compiled, patterns = self._patterns
        matches = compiled.Match(user_agent)
        if not matches:
            return None
        pattern = patterns[min(matches)]
        found = re.search(pattern, user_agent)
        # The text that matches is the name, without the characters that end it.
        return pattern if found is None else found[0].strip(" /;([")
