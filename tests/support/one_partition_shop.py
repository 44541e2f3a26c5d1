"""A shop on a Redis Cluster with a single partition, with the same interface as a shop on a single Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from redis.crc import key_slot

from ingestd.plugins.stores.redis.cluster.topology import partition_tags

from .daemon import Daemon, Shop
from .redis_cluster import RedisCluster
from .redis_pieces import entries_of_journal

__all__ = ["OnePartitionShop"]


@dataclass
class OnePartitionShop(Shop):
    """A `Shop` on a cluster. It has a prefix of its own, so several shops can share the cluster.

    One daemon has the only partition, so all daemons can have the same archive. On a cluster, the log tells only at the
    level `debug` that a cursor has passed to another daemon.
    """

    cluster: RedisCluster = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.database.unlink()
        self.prefix = f"{uuid4().hex}:"
        text = self.config.read_text().replace('"sqlite:ingestd.db"', f'"{self.cluster.url}"')
        text = text.replace("[logs]\n", '[logs]\nlevel = "debug"\n')
        self.config.write_text(f'{text}[plugins.redis]\nprefix = "{self.prefix}"\npartitions = 1\n')
        self.public, self.server = self.create_key("public", self.tenant), self.create_key("server", self.tenant)

    def _bodies(self) -> list[bytes]:
        (tag,) = partition_tags(1)
        with self.cluster.primary_of(key_slot(tag.encode())).client() as client:
            return [fields[b"b"] for fields in entries_of_journal(client, f"{self.prefix}00{{{tag}}}:")]

    @contextmanager
    def serve_with(self, count: int) -> Iterator[list[Daemon]]:
        """`count` daemons with the same configuration. At the end each is stopped with SIGTERM and must exit 0."""
        with ExitStack() as stack:
            yield [stack.enter_context(self.serve()) for _ in range(count)]
