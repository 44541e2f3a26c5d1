"""Public keys, the commands for all keys, and the keys that the configuration declares."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import field
from msgspec.structs import replace

from ingestd import hookimpl
from ingestd.errors import ConfigError
from ingestd.events import Principal, Request
from ingestd.hookspecs import Commands, Daemon
from ingestd.options import Options as BaseOptions
from ingestd.times import now

from . import key_commands
from .key_registry import Key, KeyRegistry, change_keys, check_name, is_uuid, normal_id

__all__ = ["DeclaredKey", "KeysPlugin"]


class DeclaredKey(BaseOptions):
    """A `[[plugins.keys.declared]]` of the configuration."""

    id: str
    kind: Literal["public", "server"]
    tenant: str
    label: str = ""
    secret_file: Path | None = None
    grants: dict[str, tuple[str, ...]] = field(default_factory=dict)


class KeysPlugin:
    class Options(BaseOptions):
        declared: tuple[DeclaredKey, ...] = ()

    def __init__(self, options: Options) -> None:
        self._declared = options.declared
        self._registry = KeyRegistry()

    @hookimpl
    def register_commands(self, commands: Commands) -> None:
        key_commands.register(commands)

    @hookimpl
    async def startup(self, daemon: Daemon) -> None:
        declared = [_read(entry) for entry in self._declared]
        if len({key.id for key in declared}) < len(declared):
            raise ConfigError("plugins.keys.declared: a key is declared twice")
        # Through the store, so that every plugin and command knows them like any other key.
        await change_keys(daemon.store, lambda keys: _differences(keys, {key.id: key for key in declared}))
        await self._registry.start(daemon, name="keys: follow changes")

    @hookimpl
    def authenticate(self, request: Request) -> Principal | None:
        """Whose public key this is, on any endpoint; without grants, so good for the public ones only."""
        credential = request.bearer()
        return self._registry.public(credential) if credential is not None else None


def _read(declared: DeclaredKey) -> Key:
    # A message names the key by its tenant and label: ids of public keys are not for logs.
    where = f"plugins.keys.declared: the {declared.kind} key {declared.label!r} of {declared.tenant!r}"
    try:
        check_name(declared.tenant)
    except ValueError as error:
        raise ConfigError(f"{where}: tenant: {error}") from None
    secret = previous = None
    if declared.kind == "server":
        if not is_uuid(declared.id):
            raise ConfigError(f"{where}: id: the id of a server key is a UUID")
        if declared.secret_file is None:
            raise ConfigError(f"{where}: secret_file: must be given for a server key")
        secret, previous = _read_secrets(declared.secret_file, where)
    else:
        if declared.secret_file is not None or declared.grants:
            raise ConfigError(f"{where}: a public key has neither secret_file nor grants")
        if not re.fullmatch(r"[!-~]{16,256}", declared.id):
            raise ConfigError(f"{where}: id: a public key has 16 to 256 visible ASCII characters")
    return Key(
        id=normal_id(declared.id),
        kind=declared.kind,
        tenant=declared.tenant,
        label=declared.label,
        secret=secret,
        previous_secret=previous,
        grants=declared.grants,
        created_at=now(),
        declared=True,
    )


def _read_secrets(path: Path, where: str) -> tuple[str, str | None]:
    """The first line is the secret; a second one, if any, is the one before it, still valid."""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: secret_file: {path} cannot be read: {error}") from error
    if not 1 <= len(lines) <= 2:
        raise ConfigError(f"{where}: secret_file: {path} must hold a secret, or two on two lines, without spaces")
    return lines[0], lines[1] if len(lines) == 2 else None


def _differences(keys: dict[str, Key], declared: dict[str, Key]) -> Iterable[Key]:
    """What must be stored for the declared keys to be as declared, and those no longer declared revoked."""
    for key_id, key in declared.items():
        known = keys.get(key_id)
        wanted = key if known is None else replace(key, created_at=known.created_at)
        if wanted != known:
            yield wanted
    for key_id, known in keys.items():
        if known.declared and known.revoked_at is None and key_id not in declared:
            yield known.revoked(now())
