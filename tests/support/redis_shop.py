"""A shop with state and journal on a separate Redis, and several daemons that serve it together."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .daemon import Daemon, Key, Shop
from .redis_pieces import entries_of_journal
from .redis_server import RedisServer, redis_server

__all__ = ["RedisShop", "redis_shop"]


_made: dict[str, tuple[dict[bytes, bytes], Key, Key]] = {}
"""By tenant: the content of the store after the commands for keys, by Redis key without prefix, and the API keys."""


@dataclass
class RedisShop(Shop):
    """A `Shop` on a Redis server. It has no database file.

    Several shops can share a server with different prefixes: `tables={"plugins.redis": 'prefix = "other:"'}`.
    """

    redis: RedisServer = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config.write_text(self.config.read_text().replace('"sqlite:ingestd.db"', f'"{self.redis.url}"'))
        self.database.unlink()
        self.public, self.server = self._make_keys()

    def _make_keys(self) -> tuple[Key, Key]:
        """Makes the keys by commands once and copies them, like `Shop`, unless the store has content already."""
        prefix = self._prefix.encode()
        with self.redis.client() as client:
            is_empty = next(client.scan_iter(prefix + b"*"), None) is None
            if is_empty and self.tenant in _made:
                content, public, server = _made[self.tenant]
                for name, value in content.items():
                    client.restore(prefix + name, 0, value)
                return public, server
            public, server = self.create_key("public", self.tenant), self.create_key("server", self.tenant)
            if is_empty:
                lasting = [name for name in client.scan_iter(prefix + b"*") if client.pttl(name) == -1]
                content = {name.removeprefix(prefix): client.dump(name) for name in lasting}
                _made[self.tenant] = content, public, server
            return public, server

    def _bodies(self) -> list[bytes]:
        if "url" in self._options.get("journal", {}):
            return super()._bodies()
        with self.redis.client() as client:
            return [fields[b"b"] for fields in entries_of_journal(client, self._prefix)]

    @property
    def _options(self) -> dict[str, Any]:
        return tomllib.loads(self.config.read_text())

    @property
    def _prefix(self) -> str:
        prefix: str = self._options.get("plugins", {}).get("redis", {}).get("prefix", "ingestd:")
        return prefix

    @contextmanager
    def serve_with(self, count: int) -> Iterator[list[Daemon]]:
        """`count` daemons with the same configuration. At the end each is stopped with SIGTERM and must exit 0."""
        with ExitStack() as stack:
            yield [stack.enter_context(self.serve()) for _ in range(count)]


@contextmanager
def redis_shop(
    folder: Path,
    tables: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
    *,
    host: str = "127.0.0.1",
) -> Iterator[RedisShop]:
    """A shop with a server that is killed at the end. `options` are those of redis-server."""
    with redis_server(folder / "redis", options or {}) as server:
        yield RedisShop(folder, tables or {}, host=host, redis=server)
