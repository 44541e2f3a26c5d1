"""A shop whose state and journal are on a Redis of its own, and several daemons that serve it together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .daemon import Daemon, Shop
from .redis_server import RedisServer, redis_server

__all__ = ["RedisShop", "redis_shop"]


@dataclass
class RedisShop(Shop):
    """A `Shop` on that server, with keys made by the commands. It has no database file.

    Several shops share a server with a prefix each: `tables={"plugins.redis": 'prefix = "other:"'}`.
    """

    redis: RedisServer = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config.write_text(self.config.read_text().replace('"sqlite:ingestd.db"', f'"{self.redis.url}"'))
        self.database.unlink()
        self.public = self.create_key("public", self.tenant)
        self.server = self.create_key("server", self.tenant)

    @contextmanager
    def serve_with(self, count: int) -> Iterator[list[Daemon]]:
        """So many daemons on the one configuration, stopped with SIGTERM at the end, each of which must exit 0."""
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
    """A shop with a server, which is killed at the end. `options` are redis-server's."""
    with redis_server(folder / "redis", options or {}) as server:
        yield RedisShop(folder, tables or {}, host=host, redis=server)
