"""A shop with several tenants on a Redis Cluster, and daemons that serve it together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis.crc import key_slot

from ingestd.plugins.stores.redis.cluster.topology import partition_tags

from .daemon import Daemon, Shop
from .partitioned import tenant_in
from .redis_cluster import RedisCluster
from .redis_pieces import entries_of_journal
from .redis_server import RedisServer

__all__ = ["ClusterShop", "key_of"]

_PREFIX = "shop:"


def key_of(tenant: str) -> str:
    return f"the-public-key-of-{tenant}"


@dataclass
class ClusterShop(Shop):
    """A `Shop` with one tenant in each partition, whose public key is `key_of` the tenant.

    Each daemon has an archive: two processes cannot write to one file.
    """

    cluster: RedisCluster = field(kw_only=True)
    partitions: int = field(default=6, kw_only=True)

    def __post_init__(self) -> None:
        self.tenants = [tenant_in(index, partitions=self.partitions) for index in range(self.partitions)]
        super().__post_init__()
        self.database.unlink()
        keys = ", ".join(
            f'{{ id = "{key_of(tenant)}", kind = "public", tenant = "{tenant}" }}' for tenant in self.tenants
        )
        text = self.config.read_text().replace('"sqlite:ingestd.db"', f'"{self.cluster.url}"')
        text += f"[plugins.keys]\ndeclared = [{keys}]\n"
        text += f'[plugins.redis]\nprefix = "{_PREFIX}"\npartitions = {self.partitions}\n'
        self.config.write_text(text)

    def start(self, number: int) -> Daemon:
        """The daemon with that number."""
        config = self.folder / f"ingestd-{number}.toml"
        config.write_text(self.config.read_text().replace("archive.jsonl", f"archive-{number}.jsonl"))
        return Daemon(config)

    @contextmanager
    def serve_with(self, count: int) -> Iterator[list[Daemon]]:
        """`count` daemons. At the end those that still run are stopped with SIGTERM, and must exit 0."""
        with ExitStack() as stack:
            daemons = [stack.enter_context(self.start(number)) for number in range(count)]
            yield daemons
            for daemon in daemons:
                assert daemon.terminate() == 0, "\n".join(daemon.log)

    def node_of(self, tenant: str) -> RedisServer:
        """The primary of a tenant's partition."""
        return self.cluster.primary_of(self.slot_of(tenant))

    def slot_of(self, tenant: str) -> int:
        return int(key_slot(partition_tags(self.partitions)[self.tenants.index(tenant)].encode()))

    def _bodies(self) -> list[bytes]:
        """The records of all partitions, one partition after the other."""
        bodies = []
        for index, tag in enumerate(partition_tags(self.partitions)):
            with self.cluster.primary_of(key_slot(tag.encode())).client() as client:
                entries = entries_of_journal(client, f"{_PREFIX}{index:02}{{{tag}}}:")
            bodies += [fields[b"b"] for fields in entries]
        return bodies

    def running(self) -> list[int]:
        """The number of processes that serve each partition."""
        numbers = []
        for index, tag in enumerate(partition_tags(self.partitions)):
            with self.cluster.primary_of(key_slot(tag.encode())).client() as client:
                reports = client.zrange(f"{_PREFIX}{index:02}{{{tag}}}:daemons", 0, -1)
            numbers.append(len({report.split()[0] for report in reports}))
        return numbers

    def archived_by(self, number: int) -> list[dict[str, Any]]:
        """The archive of a daemon."""
        self.archive = self.folder / f"archive-{number}.jsonl"
        return self.archived()
