"""The contract for forgetting a person: the person's ids, and the state keys under which plugins store their data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .store import kind_of_tenant, state_key

__all__ = ["Person", "Visitors"]


class Visitors(NamedTuple):
    """The visitors that a plugin has linked to one user, as digests (`ingestd.api.store.key_digest`)."""

    digests: Collection[str] = ()


class Person(NamedTuple):
    """A user of one tenant with all or some of their visitors, or a visitor without a user.

    Visitors are digests (`ingestd.api.store.key_digest`), because the anonymous ids of some are no longer known.
    """

    tenant: str
    user_id: str | None
    """None for a visitor without a user."""
    visitors: Sequence[str] = ()
    """The visitors that belong to the person now."""
    former: Sequence[str] = ()
    """Visitors that were the user's once and may now belong to somebody else, as on a shared device."""

    def user_key(self, kind: str) -> str | None:
        """The state key for the user's id, or None for a visitor without a user."""
        return None if self.user_id is None else state_key(kind, self.tenant, self.user_id)

    def visitor_keys(self, kind: str, *, former: bool = False) -> list[str]:
        """The state keys for the visitors' anonymous ids; with `former`, also for the former visitors."""
        beginning = kind_of_tenant(kind, self.tenant)
        return [f"{beginning}:{digest}" for digest in (*self.visitors, *(self.former if former else ()))]
