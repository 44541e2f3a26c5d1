"""The stored keys, and the registry that keeps a copy of them in memory."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal
from uuid import uuid4

import msgspec

from ingestd.api.errors import CommandError, Unavailable, WriteConflict
from ingestd.api.events import Principal
from ingestd.api.hookspecs import Daemon
from ingestd.api.store import Field, State, Store, state_key
from ingestd.api.times import now
from ingestd.support.periodic import every

__all__ = ["Key", "KeyRegistry", "change_keys", "has_server_keys", "is_uuid", "normal_id", "read_keys"]

_log = logging.getLogger("ingestd.keys")

_KEYS = state_key("keys", "", "")
_VERSION = state_key("keys-version", "", "")

_MOST_BYTES = 8 << 20  # of all keys: they are one entry, which is read as a whole

_ATTEMPTS = 5

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Key(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A key in its stored form. Times are in milliseconds.

    A public key's id is the key itself. A `declared` key comes from the configuration and can change only there.
    """

    id: str
    kind: Literal["public", "server"]
    tenant: str
    label: str = ""
    secret: str | None = None
    previous_secret: str | None = None
    previous_until: int | None = None
    grants: dict[str, tuple[str, ...]] = {}
    created_at: int
    revoked_at: int | None = None
    declared: bool = False

    def __repr__(self) -> str:
        """A text without the key and its secrets, because it may appear in a log."""
        return f"<{self.kind} key of {self.tenant}>"

    @property
    def access(self) -> dict[str, frozenset[str]]:
        """The grants in the form of a `Principal`."""
        return {app: frozenset(names) for app, names in self.grants.items()}

    def principal(self) -> Principal:
        return Principal(self.tenant, self.id, self.access)

    def revoked(self, at: int) -> Key:
        """The revoked key, without its secrets. It can never be used again."""
        return msgspec.structs.replace(self, revoked_at=at, secret=None, previous_secret=None, previous_until=None)

    def secrets(self, at: int) -> list[str]:
        """The secrets that are valid at that time, the current one first."""
        valid = [] if self.secret is None else [self.secret]
        if self.previous_secret is not None and (self.previous_until is None or at < self.previous_until):
            valid.append(self.previous_secret)
        return valid


class KeyRegistry:
    """The live keys in memory, as the store had them a moment ago.

    A lookup puts a random secret of this object before the credential. The time of a dictionary lookup depends on the
    hashes of its keys. Callers cannot compute hashes that include the secret, so this time tells them nothing of a key.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(32).hex()
        self._version: str | None = ""  # no stored version is empty, so the first refresh loads
        self._stored: Mapping[str, Field] = {}
        """The stored keys as last read, revoked keys included."""
        self._losses = 0
        self._before: Mapping[str, Field] | None = None
        """The keys that were stored before the current loss of data. None without a loss, or if they are unknown."""
        self._public: dict[str, Principal] = {}
        self._server: dict[str, Key] = {}
        self._revoked: frozenset[str] = frozenset()
        self._failing = False

    async def start(self, daemon: Daemon, *, name: str) -> None:
        """Load the keys, and follow their changes while the daemon runs. Raises `Unavailable`."""
        self._losses = daemon.store.losses
        await self.refresh(daemon.store)
        # If the back end applies a command's writes within a second, every daemon sees a change within two.
        daemon.watch(every("keys", partial(self._follow, daemon.store)), name=name)

    async def refresh(self, store: Store) -> None:
        """Load the keys again if they have changed. Raises `Unavailable`; the known keys stay valid.

        After a loss of data they stay valid until `recover`, because plugins are about to write lost keys again.
        """
        if self._losses != store.losses:
            return
        if store.loss is None:
            self._before = None
        await self._load(store)

    async def recover(self, store: Store) -> None:
        """Load the keys after a loss of data, once all keys are written that can be. Raises `Unavailable`."""
        if self._losses == store.losses and store.loss is None:
            self._before = None
        self._before, self._losses = self._known_before(store), store.losses
        await self._load(store)

    async def _load(self, store: Store) -> None:
        """No key is ever removed. So if a key is missing, the store has lost data."""
        state = store.begin(now())
        version = await state.get(_VERSION)
        if version == self._version:
            return
        stored = await state.fields(_KEYS)
        if self._before is None and not stored.keys() >= self._stored.keys():
            await store.report_loss("has lost keys")
        if self._losses != store.losses:
            return
        keys = _decode(stored).values()
        live = [key for key in keys if key.revoked_at is None]
        self._public = {self._name(key.id): key.principal() for key in live if key.kind == "public"}
        self._server = {self._name(key.id): key for key in live if key.kind == "server"}
        self._revoked = frozenset([self._name(key.id) for key in keys if key.revoked_at is not None])
        self._stored = stored
        self._version = version
        _count_tenants(store, _decode({**(self._before or {}), **stored}).values() if self._before else keys)

    def _known_before(self, store: Store) -> Mapping[str, Field] | None:
        """The keys that were known before the current loss of data, also if it was not handled yet."""
        if self._losses == store.losses:
            return self._before
        return {**(self._before or {}), **self._stored}

    async def write_newer(self, store: Store) -> None:
        """After a loss of data, write the newer known form of keys that the store has in an older form.

        So revoked keys stay revoked. Each key keeps the time of its last change, so later changes stay. Raises
        `Unavailable`.
        """
        state = store.begin(now())
        stored = await state.fields(_KEYS)
        newer = {
            key_id: field
            for key_id, field in (self._known_before(store) or {}).items()
            if key_id in stored and field.at > stored[key_id].at
        }
        if newer:
            await state.merge(_KEYS, newer)
            await state.put(_VERSION, str(uuid4()))
            # After a conflict with another daemon, which does the same, another call follows while keys are missing.
            with suppress(WriteConflict):
                await store.commit(state)

    def missing(self) -> str | None:
        """A text for operators about the live keys that the store has lost; None if it has lost none."""
        if self._before is None:
            return "the keys that commands created, if there were any"
        lost = [key for key in _decode(self._before).values() if key.revoked_at is None and key.id not in self._stored]
        return f"{len(lost)} of the keys that commands created" if lost else None

    def public(self, credential: str) -> Principal | None:
        """The principal of this live public key."""
        return self._public.get(self._name(credential))

    def server(self, credential: str) -> Key | None:
        """The live server key with this id."""
        return self._server.get(self._name(credential))

    def is_revoked(self, credential: str) -> bool:
        """Whether the credential is the id of a stored, revoked key."""
        return self._name(credential) in self._revoked

    def _name(self, credential: str) -> str:
        return self._secret + normal_id(credential)

    async def _follow(self, store: Store) -> None:
        try:
            await self.refresh(store)
            self._failing = False
        except Unavailable as error:
            if not self._failing:
                _log.warning("the store cannot be read; until it can, changes of keys have no effect: %s", error)
            self._failing = True


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def normal_id(credential: str) -> str:
    """The id in lower case if it is a UUID, whose case does not matter. Other ids stay unchanged."""
    lower = credential.lower()
    return lower if lower != credential and is_uuid(credential) else credential


async def read_keys(state: State) -> dict[str, Key]:
    """All keys by id, revoked keys included."""
    return _decode(await state.fields(_KEYS))


async def has_server_keys(store: Store) -> bool:
    """Whether any server key can sign. Raises `Unavailable`."""
    keys = await read_keys(store.begin(now()))
    return any(key.secret is not None and key.revoked_at is None for key in keys.values())


def _decode(stored: Mapping[str, Field]) -> dict[str, Key]:
    return {key_id: msgspec.json.decode(field.value, type=Key) for key_id, field in stored.items()}


def _count_tenants(store: Store, keys: Iterable[Key]) -> None:
    counts = Counter(map(store.of_tenant, {key.tenant for key in keys}))
    for part in store.parts:
        part.tenants = counts[part]


async def change_keys(store: Store, change: Callable[[dict[str, Key]], Iterable[Key]]) -> None:
    """Store the new and changed keys that `change` returns for the present keys.

    Passes on errors of `change`. Raises `Unavailable`, and `CommandError` if others keep changing the keys, or if there
    is no room for more.
    """
    for _ in range(_ATTEMPTS):
        state = store.begin(now())
        stored = await state.fields(_KEYS)
        changed = list(change(_decode(stored)))
        if not changed:
            return
        size = sum(len(name) + len(field.value) for name, field in stored.items())
        if size > _MOST_BYTES and any(key.id not in stored for key in changed):
            raise CommandError(f"the store has {len(stored)} keys, revoked ones included, and takes no more")
        # A revocation must not get lost if the clock has gone back since the key was created.
        at = max([state.now, *(field.at for field in stored.values())])
        await state.merge(_KEYS, {key.id: Field(at, msgspec.json.encode(key).decode()) for key in changed})
        # The version is written after the keys. So a reader of this version never loads the keys before it.
        await state.put(_VERSION, str(uuid4()))
        try:
            await store.commit(state)
        except WriteConflict:
            continue
        return
    raise CommandError("other commands or daemons are changing the keys at the same time; try again")
