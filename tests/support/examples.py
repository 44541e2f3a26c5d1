"""Fewer examples of a rule where each is dear, and as many times more in `make test-long` as of other rules."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

_SHORT = 30  # examples of other rules in `make test`, by the profile "short" of tests/conftest.py


def examples(number: int) -> settings:
    """So many examples in `make test`. Under the profile "long", as many times more as of other rules."""
    return settings(max_examples=number * settings().max_examples // _SHORT)
