"""The keys: how they are stored, and a view of them in memory that follows the store."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal
from uuid import uuid4

import msgspec

from ingestd.api.errors import CommandError, Conflict, Unavailable
from ingestd.api.events import Principal
from ingestd.api.hookspecs import Daemon
from ingestd.api.store import Field, State, Store, state_key
from ingestd.api.times import now

__all__ = ["Key", "KeyRegistry", "change_keys", "check_name", "has_server_keys", "is_uuid", "normal_id", "read_keys"]

_log = logging.getLogger("ingestd.keys")

_KEYS = state_key("keys", "", "")
_VERSION = state_key("keys-version", "", "")

# With a back end that applies a command's writes within a second, a change is seen within two.
_POLL_SECONDS = 0.5

_ATTEMPTS = 5

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Key(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One key as it is stored. Times are in milliseconds.

    A public key's id is the key itself. `declared` ones come from the configuration and are changed there.
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
        """Without the key and its secrets: a repr may end up in a log."""
        return f"<{self.kind} key of {self.tenant}>"

    @property
    def access(self) -> dict[str, frozenset[str]]:
        """The grants as a `Principal` has them."""
        return {app: frozenset(names) for app, names in self.grants.items()}

    def principal(self) -> Principal:
        return Principal(self.tenant, self.id, self.access)

    def revoked(self, at: int) -> Key:
        """The key without its secrets, which can never be used again."""
        return msgspec.structs.replace(self, revoked_at=at, secret=None, previous_secret=None, previous_until=None)

    def secrets(self, at: int) -> list[str]:
        """The secrets that are valid at that time, the present one first."""
        valid = [] if self.secret is None else [self.secret]
        if self.previous_secret is not None and (self.previous_until is None or at < self.previous_until):
            valid.append(self.previous_secret)
        return valid


class KeyRegistry:
    """The live keys in memory, as the store had them a moment ago.

    They are looked up with a random secret of this object before them: a dictionary compares what has the same
    hash, so how long that takes tells a caller something about hashes that they cannot compute, and nothing of a key.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(32).hex()
        self._version: str | None = ""  # no stored version is empty, so the first refresh loads
        self._stored: Mapping[str, Field] = {}
        """As the store had them, revoked ones included."""
        self._losses = 0
        self._before: Mapping[str, Field] | None = None
        """As the store had them before the loss of data that stands; None where this registry knows of none."""
        self._public: dict[str, Principal] = {}
        self._server: dict[str, Key] = {}
        self._revoked: frozenset[str] = frozenset()

    async def start(self, daemon: Daemon, *, name: str) -> None:
        """Load the keys, and follow their changes for as long as the daemon runs. Raises `Unavailable`."""
        self._losses = daemon.store.losses
        await self.refresh(daemon.store)
        daemon.watch(self._follow(daemon.store), name=name)

    async def refresh(self, store: Store) -> None:
        """Load the keys again if they have changed. Raises `Unavailable`; the known ones stay valid.

        No key is ever removed, so a store without one that it had has lost data.
        """
        if self._losses == store.losses and store.loss is None:
            self._before = None
        self._remember(store)
        state = store.begin(now())
        version = await state.get(_VERSION)
        if version == self._version:
            return
        stored = await state.fields(_KEYS)
        if self._before is None and not stored.keys() >= self._stored.keys():
            await store.report_loss("has lost keys")
            self._remember(store)
        keys = _decode(stored).values()
        live = [key for key in keys if key.revoked_at is None]
        self._public = {self._name(key.id): key.principal() for key in live if key.kind == "public"}
        self._server = {self._name(key.id): key for key in live if key.kind == "server"}
        self._revoked = frozenset([self._name(key.id) for key in keys if key.revoked_at is not None])
        self._stored = stored
        self._version = version

    def _remember(self, store: Store) -> None:
        """After a loss, which keys the store had before."""
        if self._losses != store.losses:
            self._losses = store.losses
            self._before = {**(self._before or {}), **self._stored}

    async def bring_up_to_date(self, store: Store) -> None:
        """After a loss, give keys that the store has in an older form the one they had: revoked ones stay revoked.

        Each keeps the time of its last change, so what was changed since then stays. Raises `Unavailable`.
        """
        state = store.begin(now())
        newer = {
            key_id: field
            for key_id, field in (self._before or {}).items()
            if key_id in self._stored and field.at > self._stored[key_id].at
        }
        if newer:
            await state.merge(_KEYS, newer)
            await state.put(_VERSION, str(uuid4()))
            await store.commit(state)

    def missing(self) -> str | None:
        """Which live keys the store had before the loss that stands, and has not now; for operators."""
        if self._before is None:
            return "the keys that were made by a command, unless there were none"
        lost = [key for key in _decode(self._before).values() if key.revoked_at is None and key.id not in self._stored]
        return f"{len(lost)} of the keys that were made by a command" if lost else None

    def public(self, credential: str) -> Principal | None:
        """Whose live public key this is."""
        return self._public.get(self._name(credential))

    def server(self, credential: str) -> Key | None:
        """The live server key of this id."""
        return self._server.get(self._name(credential))

    def is_revoked(self, credential: str) -> bool:
        """Whether it is the id of a key that is stored and revoked."""
        return self._name(credential) in self._revoked

    def _name(self, credential: str) -> str:
        return self._secret + normal_id(credential)

    async def _follow(self, store: Store) -> None:
        failing = False
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.refresh(store)
            except Unavailable as error:
                if not failing:
                    _log.warning("changes of keys are not seen while the store cannot be read: %s", error)
                failing = True
            else:
                failing = False


def check_name(name: str) -> str:
    """The name of a tenant, an app or a permission, if it is one. Raises `ValueError`."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise ValueError(f"expected a name of 1 to 64 letters, digits, - _ and ., got {name!r}")
    return name


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def normal_id(credential: str) -> str:
    """The one form of an id that is a UUID: its case does not matter. Other ids are as they are."""
    return credential.lower() if is_uuid(credential) else credential


async def read_keys(state: State) -> dict[str, Key]:
    """All keys by id, revoked ones included."""
    return _decode(await state.fields(_KEYS))


async def has_server_keys(store: Store) -> bool:
    """Whether any server key can sign. Raises `Unavailable`."""
    keys = await read_keys(store.begin(now()))
    return any(key.secret is not None and key.revoked_at is None for key in keys.values())


def _decode(stored: Mapping[str, Field]) -> dict[str, Key]:
    return {key_id: msgspec.json.decode(field.value, type=Key) for key_id, field in stored.items()}


async def change_keys(store: Store, change: Callable[[dict[str, Key]], Iterable[Key]]) -> None:
    """Store what `change` makes of the present keys: the new and the changed ones.

    Raises what `change` raises, `CommandError` when others keep changing the keys meanwhile, and
    `Unavailable`.
    """
    for _ in range(_ATTEMPTS):
        state = store.begin(now())
        stored = await state.fields(_KEYS)
        changed = list(change(_decode(stored)))
        if not changed:
            return
        # A revocation must not get lost because the clock was set back since the key was made.
        at = max([state.now, *(field.at for field in stored.values())])
        await state.merge(_KEYS, {key.id: Field(at, msgspec.json.encode(key).decode()) for key in changed})
        # Behind the keys, so that who has seen this version has not loaded the keys before it.
        await state.put(_VERSION, str(uuid4()))
        try:
            await store.commit(state)
        except Conflict:
            continue
        return
    raise CommandError("the keys are being changed by others at the same time; try again")
