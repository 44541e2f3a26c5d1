"""The columns by which a report groups."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BY", "columns_of"]

BY = (
    "channel", "source", "medium", "campaign", "name", "term", "content", "landing", "product", "model",
)  # fmt: skip
"""The choices of `--by`. `landing` is the path of a touchpoint's page."""


def columns_of(by: Sequence[str]) -> tuple[str, ...]:
    """The columns for choices of `--by`. `campaign` alone is all that names one, and beside others its name."""
    chosen = [each for each in by if each != "model"] or ["channel"]
    if chosen == ["campaign"]:
        return "source", "medium", "name"
    return tuple(dict.fromkeys("name" if each == "campaign" else each for each in chosen))
