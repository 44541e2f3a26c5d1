"""Names for ids that the operators' page must not show: a number for each order, visitor, user and session."""

from __future__ import annotations

from collections.abc import Collection

from ingestd.api.terminal import printable

__all__ = ["Names", "shortened"]

_LONGEST = 200  # characters of a text that a caller chose


def shortened(text: str) -> str:
    """The text for a page: without invisible characters, and cut."""
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class Names:
    """Names ids by their kind and a number, such as `visitor 2`. Ids that the operator has typed are shown."""

    def __init__(self, typed: Collection[str], *, hide: bool) -> None:
        self._typed = typed
        self._hide = hide
        self._numbers: dict[tuple[str, str], int] = {}

    def name(self, kind: str, value: str | None) -> str | None:
        """The id itself, or its name; None for no id."""
        if value is None:
            return None
        if not self._hide or value in self._typed:
            return shortened(value)
        known = sum(each == kind for each, _ in self._numbers)
        return f"{kind} {self._numbers.setdefault((kind, value), known + 1)}"
