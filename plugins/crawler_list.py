"""The user agents of crawlers, from the package crawler-user-agents."""

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
"""Characters of a user agent that are matched. A crawler's name is within them."""
_REMEMBERED = 4096
"""User agents in the cache. At their longest they take two megabytes."""


def missing_packages() -> list[str]:
    return [package for module, package in _PACKAGES.items() if find_spec(module) is None]


class CrawlerList:
    """Finds the crawler of a user agent by the texts `allow`, then the texts `deny`, then the package's patterns.

    The package has 1,500 patterns. RE2 matches all of them in one pass, in 4 to 9 µs for a new user agent. Python's
    `re` takes 600 µs. A stranger may send a new user agent with each request.
    """

    def __init__(self, allow: Sequence[str], deny: Sequence[str]) -> None:
        self._allow = allow
        self._deny = deny
        self._recall: Callable[[str], str | None] = lru_cache(maxsize=_REMEMBERED)(self._find)

    def find_name(self, user_agent: str) -> str | None:
        """The crawler's name, or None if the user agent is not a crawler's."""
        return self._recall(user_agent[:_LONGEST])

    def load(self) -> None:
        """Read and compile the patterns, which takes some 50 ms. Otherwise the first user agent would wait for it."""
        _ = self._patterns

    @cached_property
    def _patterns(self) -> tuple[Any, list[str]]:
        """All patterns compiled as one set, and each as a text."""
        re2: Any = import_module("re2")  # here, because commands do not need it; it has no types
        data: Any = import_module("crawleruseragents")
        patterns: list[str] = [entry["pattern"] for entry in data.CRAWLER_USER_AGENTS_DATA]
        options = re2.Options()
        options.log_errors = False  # otherwise RE2 writes to standard error
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
        # The matching text is the name. Punctuation at its ends does not belong to it.
        return pattern if found is None else found[0].strip(" /;([")
