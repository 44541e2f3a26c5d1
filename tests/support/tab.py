"""A tab of a headless browser: what the tests of all browsers need."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Protocol

from .daemon import PATIENCE

__all__ = ["AnyBrowser", "AnyTab", "PageGoneError"]


class PageGoneError(Exception):
    """The page of an expression was left before it had a value."""


class AnyTab(ABC):
    """A tab. `requests` are the requested URLs, and `complaints` the warnings and errors of the console."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []

    @abstractmethod
    def open(self, url: str) -> None:
        """Starts to load the URL. `wait_for` waits until the page is there."""

    @abstractmethod
    def reload(self) -> None:
        """Starts to load the page again."""

    @abstractmethod
    def run_first(self, code: str) -> None:
        """Runs JavaScript in each later page, before its own scripts."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited. Raises `PageGoneError`."""

    def wait_for(self, expression: str, patience: float = PATIENCE) -> Any:
        """The value of the expression as soon as it is true."""
        deadline = time.monotonic() + patience
        while True:
            with suppress(PageGoneError):  # the next page answers
                if value := self.evaluate(expression):
                    return value
            assert time.monotonic() < deadline, f"the condition did not become true in time: {expression}"
            time.sleep(0.05)


class AnyBrowser(Protocol):
    @property
    def name(self) -> str: ...

    def tab(self) -> AnyTab: ...
