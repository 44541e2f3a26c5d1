"""The contract of forgetting a person: who they are, and where plugins find what they remember of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .store import state_key

__all__ = ["Person", "Visitors"]


class Visitors(NamedTuple):
    """The visitors that a plugin has linked to one user, as `ingestd.api.store.key_digest` names them."""

    digests: Collection[str] = ()


class Person(NamedTuple):
    """A user with their visitors, or one visitor alone, of one tenant; or some of a user's many visitors.

    Visitors are digests (`ingestd.api.store.key_digest`): of some of them nobody knows the name any more.
    """

    tenant: str
    user_id: str | None
    """None for a visitor alone."""
    visitors: Sequence[str] = ()
    """Those that are the person's own."""
    former: Sequence[str] = ()
    """Those that were the user's once and are now, or may be, somebody else's: of a shared device."""

    def user_key(self, kind: str) -> str | None:
        """The state key of what is kept under the user's id; None for a visitor alone."""
        return None if self.user_id is None else state_key(kind, self.tenant, self.user_id)

    def visitor_keys(self, kind: str, *, former: bool = False) -> list[str]:
        """The state keys of what is kept under the visitors' anonymous ids; `former`: of those visitors too."""
        return [f"{kind}:{digest}" for digest in (*self.visitors, *(self.former if former else ()))]
