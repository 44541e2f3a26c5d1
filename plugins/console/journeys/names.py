"""Names for ids that the operators' page must not show: a pseudonym for each order, visitor, user and session."""

from __future__ import annotations

from collections.abc import Collection

from ingestd.support.terminal import printable

from ..disclosure import Disclosure

__all__ = ["Names", "shortened"]

_LONGEST = 200  # characters of a text that a caller chose


def shortened(text: str) -> str:
    """The text for a page: without invisible characters, and cut."""
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class Names:
    """Names ids by their kind and a pseudonym, such as `visitor #1f3a09bc`. The ids that a viewer has typed are shown.

    Live events have the same pseudonyms.
    """

    def __init__(self, typed: Collection[str], disclosure: Disclosure) -> None:
        self._typed = typed
        self._disclosure = disclosure

    @property
    def hide(self) -> bool:
        """Whether ids and free texts of callers are hidden."""
        return self._disclosure.level != "all"

    def name(self, kind: str, value: str | None) -> str | None:
        """The id itself, or its name; None for no id."""
        if value is None:
            return None
        if not self.hide or value in self._typed:
            return shortened(value)
        return f"{kind} {self._disclosure.pseudonym(value)}"
