"""Bounds on the traits of a request and of a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from ingestd.api.errors import BadRequest
from ingestd.api.store import Field, State

__all__ = ["TraitBounds", "trait_fields"]


class TraitBounds:
    """At most `traits` traits, and at most `size` bytes of names and JSON values."""

    def __init__(self, traits: int, size: int) -> None:
        self._traits = traits
        self._size = size
        self.count_dropped: Callable[[int], None] = _ignore
        self.count_refused: Callable[[int], None] = _ignore

    def check(self, traits: Mapping[str, Any]) -> None:
        """Raises `BadRequest` if a profile cannot keep so many or so large traits."""
        if len(traits) > self._traits:
            raise BadRequest.of_member(
                "/traits", f"expected at most {self._traits} traits, got {len(traits)}", "maxProperties"
            )
        size = sum([len(name.encode()) + len(msgspec.json.encode(value)) for name, value in traits.items()])
        if size > self._size:
            raise BadRequest.of_member(
                "/traits", f"expected at most {self._size} bytes of names and values, got {size}", "size"
            )

    async def merge(self, state: State, profile: str, fields: Mapping[str, Field], ttl: int | None) -> None:
        """Add traits to a profile, which then lives `ttl`. Beyond the bounds, its oldest traits are dropped."""
        if fields:
            dropped = await state.merge(profile, fields, keep=self._traits, keep_size=self._size, ttl=ttl)
            if dropped:
                state.on_commit(partial(self.count_dropped, dropped))

    def refuse(self, state: State, fields: Mapping[str, Field]) -> None:
        """Count traits that are not kept because the profiles of all are at their bound."""
        if fields:
            state.on_commit(partial(self.count_refused, len(fields)))


def trait_fields(traits: Mapping[str, Any], at: int) -> dict[str, Field]:
    """The fields of a profile for these traits. Each value is JSON."""
    return {name: Field(at, msgspec.json.encode(value).decode()) for name, value in traits.items()}


def _ignore(_: int) -> None:
    """Commands count nothing."""
