"""How much memory a text of a caller takes. One emoji makes every character of the text take four bytes."""

from __future__ import annotations

__all__ = ["text_memory"]


_BESIDE = 50  # bytes of any text
_WIDEST = 8  # bytes of a character: four as Python has it, and as many in UTF-8, which is kept once it was written


def text_memory(text: str) -> int:
    """At most so many bytes, whatever has been done with the text; so the answer for a text is always the same."""
    return _BESIDE + (len(text) if text.isascii() else _WIDEST * len(text))
