"""The contract for moving data: all entries of a store, as they are, and the start of an empty journal.

`ingestd store copy` and `ingestd store compare` use it. `ingestd.testing.contents` has the suite for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import blake2b

import msgspec

from .journal import IDEMPOTENCY_KIND
from .store import Field

__all__ = ["Contents", "Entry", "kind_of", "namespace_of"]


class Entry(msgspec.Struct, frozen=True):
    """All that a key has: a value, or fields, or the members of a set.

    `expires` is the last millisecond of its life; None stands for ever. An entry may have expired: a consumer that lags
    may still need it. All members of a set expire together, when the last one does.
    """

    key: str
    value: str | None = None
    fields: Mapping[str, Field] | None = None
    members: Mapping[str, int] | None = None
    """The members with their times, in milliseconds."""
    expires: int | None = None

    @property
    def is_idempotency_key(self) -> bool:
        """Whether the entry is the key of a message, and no state. A back end may keep these apart."""
        return kind_of(self.key) == IDEMPOTENCY_KIND

    @property
    def size(self) -> int:
        """Approximate bytes of the entry's content."""
        size = len(self.key)
        if self.value is not None:
            size += len(self.value)
        if self.fields is not None:
            size += sum([len(name) + len(field.value) for name, field in self.fields.items()])
        if self.members is not None:
            size += sum(map(len, self.members))
        return size

    def digest(self) -> bytes:
        """A digest of 16 bytes. Equal entries have equal digests in every back end."""
        fields, members = sorted((self.fields or {}).items()), sorted((self.members or {}).items())
        content = msgspec.msgpack.encode([self.key, self.value, fields, members, self.expires])
        return blake2b(content, digest_size=16).digest()


def kind_of(key: str) -> str:
    """The kind of a key, as `state_key` takes it."""
    return key.partition(":")[0].partition("@")[0]


def namespace_of(key: str) -> int:
    """The number in a key of a tenant that was moved; 0 in other keys."""
    return int(key.partition(":")[0].partition("@")[2] or 0)


class Contents(ABC):
    """The stored entries of one partition, without the journal.

    A back end whose tenants can be moved sets `notes_changes`. It has `note_changes`, `take_changes` and `Store.fence`.

    Reading works beside a running daemon. Writing needs the store alone: no daemon serves from it. Each method raises
    `Unavailable`, and writing also `CommandError`.
    """

    notes_changes: bool = False

    @abstractmethod
    def entries(self) -> AsyncIterator[Sequence[Entry]]:
        """All durable entries, each once, in any order, some at a time.

        Entries that change meanwhile may be included or missing. The memory needed does not grow with the store.
        """

    @abstractmethod
    async def find(self, entries: Sequence[Entry]) -> Sequence[Entry | None]:
        """What the store has under the keys of these entries, in their order; None for an absent key."""

    async def all_keys(self) -> AsyncIterator[Sequence[str]]:
        """The keys of all durable entries, in any order, some at a time.

        A key may come twice, and a key without an entry may be among them. A back end that need not read the entries
        for it overrides this.
        """
        async for some in self.entries():
            yield [entry.key for entry in some]

    @abstractmethod
    async def replace(self, entries: Sequence[Entry]) -> None:
        """Store these entries durably, each in place of all that its key has, and all of them or none."""

    @abstractmethod
    async def remove(self, entries: Sequence[Entry]) -> None:
        """Remove all that the keys of these entries have, durably."""

    async def note_changes(self, name: int) -> None:
        """Note the keys of all entries that change from now on, under a name, and drop what was noted. 0 ends that."""
        raise NotImplementedError

    async def take_changes(self, name: int, limit: int) -> Sequence[str]:
        """Some of the keys that were noted under a name, which are dropped; none if there are none.

        Raises `CommandError` if another name was given since.
        """
        raise NotImplementedError

    @abstractmethod
    async def continue_after(self, position: int) -> None:
        """Let the journal, which must have no records, continue after a position. It is durable with the next commit.

        Positions of earlier records are lower, also of records that were removed.
        """
