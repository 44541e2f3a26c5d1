"""Public keys, the commands for all keys, and the keys that the configuration declares."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from msgspec import field
from msgspec.structs import replace

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, Unauthorized
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.api.hookspecs import Commands, Daemon
from ingestd.api.options import Options as BaseOptions
from ingestd.api.options import Secret
from ingestd.api.store import Store
from ingestd.api.times import now
from ingestd.support.names import check_name

from . import key_commands
from .key_registry import Key, KeyRegistry, change_keys, is_uuid, normal_id, read_keys

__all__ = ["DeclaredKey", "KeysPlugin"]


class DeclaredKey(BaseOptions):
    """An entry `[[plugins.keys.declared]]` of the configuration."""

    id: str
    kind: Literal["public", "server"]
    tenant: str
    label: str = ""
    secret: Secret | None = None
    previous_secret: Secret | None = None
    """The secret before the current one, still valid."""
    grants: dict[str, tuple[str, ...]] = field(default_factory=dict)


class KeysPlugin:
    class Options(BaseOptions):
        declared: tuple[DeclaredKey, ...] = ()

    def __init__(self, options: Options) -> None:
        self._declared = [_read(entry, f"plugins.keys.declared[{n}]") for n, entry in enumerate(options.declared)]
        if len({key.id for key in self._declared}) < len(self._declared):
            raise ConfigError("plugins.keys.declared: a key is declared twice")
        self._registry = KeyRegistry()
        self._store: Store | None = None

    @hookimpl
    def register_commands(self, commands: Commands) -> None:
        key_commands.register(commands)

    @hookimpl(tryfirst=True)  # before other plugins that read the keys, so that they find the declared keys
    async def startup(self, daemon: Daemon) -> None:
        self._store = daemon.store
        await self._declare(daemon.store)
        await self._registry.start(daemon, name="keys: follow changes")

    @hookimpl(trylast=True)  # after every plugin that may refuse the reload, because this cannot be undone
    async def take_over(self, predecessor: KeysPlugin, daemon: Daemon) -> None:
        await self._declare(daemon.store)
        self._store = daemon.store
        self._registry = predecessor._registry
        await self._registry.refresh(daemon.store)
        refresh = getattr(daemon.plugin("hmac_auth"), "refresh", None)  # else it sees them half a second later
        if refresh is not None:
            await refresh(daemon.store)

    @hookimpl(tryfirst=True)  # before other plugins that read the keys
    async def store_lost(self, store: Store) -> str | None:
        """Declare the keys again. Returns a text about other keys that are missing."""
        await self._registry.write_newer(store)
        # Keys that are no longer declared are not revoked, because the store may be another shop's.
        declared = {key.id: key for key in self._declared}
        await change_keys(store, lambda keys: _undeclared(keys, declared))
        await self._registry.recover(store)
        return self._registry.missing()

    async def _declare(self, store: Store) -> None:
        """Write the declared keys to the store, so that plugins and commands find them like other keys."""
        declared = {key.id: key for key in self._declared}
        await change_keys(store, lambda keys: _differences(keys, declared))

    @hookimpl
    async def state_parts(self, store: Store) -> Mapping[str, Collection[str]]:
        keys = await read_keys(store.begin(now()))
        return {key.tenant: () for key in [*keys.values(), *self._declared]}

    @hookimpl
    def authenticate(self, request: Request) -> Principal | None:
        """The principal of a public key, on any endpoint. It has no grants, so only public endpoints accept it."""
        credential = request.bearer()
        if credential is None:
            return None
        principal = self._registry.public(credential)
        if principal is None and self._store is not None and self._store.loss is not None:
            self._refuse_known(request.endpoint, credential)
        return principal

    def _refuse_known(self, endpoint: Endpoint, credential: str) -> None:
        """Refuse a known key as always. After a loss of data, an unknown key may be one that was lost."""
        is_server = endpoint.is_public and self._registry.server(credential) is not None
        if is_server or self._registry.is_revoked(credential):
            raise Unauthorized("This key is not valid here.")


def _read(declared: DeclaredKey, path: str) -> Key:
    # Messages do not name the key, because the id of a public key must not be logged.
    try:
        check_name(declared.tenant)
    except ValueError as error:
        raise ConfigError(f"{path}.tenant: {error}") from None
    if declared.kind == "server":
        if not is_uuid(declared.id):
            raise ConfigError(f"{path}.id: the id of a server key is a UUID")
        if declared.secret is None:
            raise ConfigError(f"{path}.secret: must be given for a server key")
    else:
        if declared.secret is not None or declared.previous_secret is not None or declared.grants:
            raise ConfigError(f"{path}: a public key has neither secrets nor grants")
        if not re.fullmatch(r"[!-~]{16,256}", declared.id):
            raise ConfigError(f"{path}.id: a public key has 16 to 256 visible ASCII characters")
    return Key(
        id=normal_id(declared.id),
        kind=declared.kind,
        tenant=declared.tenant,
        label=declared.label,
        secret=_plain(declared.secret, f"{path}.secret"),
        previous_secret=_plain(declared.previous_secret, f"{path}.previous_secret"),
        grants=declared.grants,
        created_at=now(),
        declared=True,
    )


def _plain(secret: Secret | None, path: str) -> str | None:
    """The secret in its stored form."""
    if secret is not None and re.search(r"\s", secret):
        raise ConfigError(f"{path}: a key's secret has no spaces or line breaks")
    return None if secret is None else str(secret)


def _undeclared(keys: dict[str, Key], declared: dict[str, Key]) -> Iterable[Key]:
    """Declared keys that differ from the stored ones, or are not stored."""
    for key_id, key in declared.items():
        known = keys.get(key_id)
        wanted = key if known is None else replace(key, created_at=known.created_at)
        if wanted != known:
            yield wanted


def _differences(keys: dict[str, Key], declared: dict[str, Key]) -> Iterable[Key]:
    """The keys to store: declared keys that differ, and revoked forms of keys that are no longer declared."""
    yield from _undeclared(keys, declared)
    for key_id, known in keys.items():
        if known.declared and known.revoked_at is None and key_id not in declared:
            yield known.revoked(now())
