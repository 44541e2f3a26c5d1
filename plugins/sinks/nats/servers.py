"""The servers: their addresses, the credentials for them, and connecting to one of them."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ingestd.api.errors import ConfigError, SinkRetry

from .. import not_installed
from .client import Connection, plain

if TYPE_CHECKING:
    from . import NatsOptions

__all__ = ["Servers"]


class Servers:
    """The servers of a sink. Raises `ConfigError` for invalid options, and `SinkRetry` if no server can be reached."""

    def __init__(self, name: str, options: NatsOptions) -> None:
        try:
            from nats.aio.client import Client

            if options.credentials is not None:
                import nkeys  # type: ignore[import-untyped]  # noqa: F401 - nats-py signs with it
        except ImportError:
            raise not_installed(name, "nats-py", "nats") from None
        self._make_client = Client
        # nats-py logs errors with tracebacks. The write raises the same errors.
        logging.getLogger("nats").setLevel(logging.CRITICAL)
        if (options.url is None) == (not options.servers):
            raise ConfigError(f"sinks.{name}.url: give either url or servers, a list of URLs")
        urls = {f"servers[{index}]": url for index, url in enumerate(options.servers)}
        if options.url is not None:
            urls["url"] = options.url
        self._addresses: deque[_Address] = deque()
        for option, url in urls.items():
            try:
                self._addresses.append(_Address.parse(url))
            except ValueError as error:
                raise ConfigError(f"sinks.{name}.{option}: {error}") from None
        self._credentials = options.credentials
        if options.credentials is not None:
            try:
                _read_credentials(options.credentials)
            except ValueError as error:
                raise ConfigError(f"sinks.{name}.credentials: {error}") from None
        self._all_tls = options.ca_file is not None
        self._tls: ssl.SSLContext | None = None
        try:
            if self._all_tls or any(address.tls for address in self._addresses):
                self._tls = ssl.create_default_context(cafile=options.ca_file)
        except OSError as error:
            raise ConfigError(f"sinks.{name}.ca_file: {options.ca_file} cannot be used: {error}") from None

    async def connect(self) -> Connection:
        """A connection to the first server that can be reached. The next call begins with another server."""
        reasons = []
        for _ in range(len(self._addresses)):
            address = self._addresses[0]
            self._addresses.rotate(-1)
            try:
                return await self._connect_to(address)
            except SinkRetry as error:
                reasons.append(str(error))
        raise SinkRetry("; ".join(reasons))

    async def _connect_to(self, address: _Address) -> Connection:
        connection = Connection(self._make_client(), address.host_and_port, address.tls or self._all_tls)
        try:
            await connection.connect(await self._access(address, connection))
        except BaseException as error:
            await connection.close()
            if isinstance(error, Exception):  # nats-py raises any error if the server does not speak NATS
                raise SinkRetry(f"{address.host_and_port}: {plain(error)}") from error
            raise
        return connection

    async def _access(self, address: _Address, connection: Connection) -> dict[str, Any]:
        """The arguments of nats-py for TLS and credentials."""
        from nats.aio.client import RawCredentials

        def given(secret: str) -> Callable[[], str]:
            def give() -> str:  # nats-py calls this once TLS is established or cannot be
                connection.expect_encrypted()
                return secret

            return give

        access: dict[str, Any] = {}
        if connection.needs_tls:
            access["tls"] = self._tls
        if address.user:
            access |= {"user": given(address.user), "password": given(address.password)}
        elif address.password:
            access["token"] = given(address.password)
        if self._credentials is not None:
            text = await asyncio.to_thread(_read_credentials, self._credentials)
            access["user_credentials"] = RawCredentials(text)
        return access


class _Address(NamedTuple):
    host_and_port: str
    tls: bool
    user: str
    password: str
    """The password, or a token if there is no user."""

    @classmethod
    def parse(cls, url: str) -> _Address:
        """Raises `ValueError`. Its text shows nothing of the URL, which may hold a password."""
        try:
            parts = urlsplit(url)
            port = parts.port or 4222
        except ValueError:
            raise ValueError(
                "expected nats://host:port with a number as the port; in a password, write / ? # @ : % as %2F …"
            ) from None
        rest = parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme not in {"nats", "tls"} or not parts.hostname or rest:
            raise ValueError("expected nats://host:4222 or tls://host:4222")
        if parts.username and parts.password is None:  # a token as a user name would be shown
            raise ValueError("expected nats://user:password@host or nats://:token@host")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(f"{host}:{port}", parts.scheme == "tls", user, password)


def _read_credentials(path: Path) -> str:
    """Read the file of credentials. Raises `ValueError`.

    Each connection reads it again, because it may be replaced before it expires.
    """
    try:
        text = "\n".join([*path.read_text().splitlines(), ""])
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', 'it is not UTF-8')}") from None
    # Without the JWT or the seed, nats-py would search the text for ever.
    if not re.search(r"BEGIN NATS USER JWT-*\n\S+\n(?s:.*)BEGIN USER NKEY SEED-*\n\S+\n", text):
        raise ValueError(f"{path} holds no JWT with its seed, as made by nsc")
    return text
