"""Two daemons on a Redis Cluster under load, in the process of the test, and a check that no answered event is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from uuid import uuid4

from ingestd.api.errors import Unavailable
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.cluster.backend import ClusterBackend

from .deriver import Deriver
from .journals import running, until
from .redis_cluster import RedisCluster, cluster_backend
from .redis_server import RedisServer
from .senders import LONG, NOW, Senders, texts

__all__ = ["PARTITIONS", "Daemons", "is_derived", "opened", "serving"]

PARTITIONS = 6
_TIMEOUT = 0.5


class Daemons:
    """Two daemons that serve from a cluster, with a consumer of each partition, and senders to all partitions."""

    def __init__(self, cluster: RedisCluster, backends: Sequence[ClusterBackend]) -> None:
        self.backends = backends
        self._cluster = cluster
        self.senders = {
            name: Senders([backend.backends[number] for backend in backends], 2, pause=0.04)
            for number, name in enumerate(partition.name for partition in backends[0].partitions)
        }

    @property
    def partitions(self) -> Sequence[RedisBackend]:
        """As the first daemon sees them."""
        return self.backends[0].backends

    async def more(self, count: int, names: Sequence[str] | None = None) -> None:
        """Wait until each partition, or each of those, has answered `count` more messages."""
        await asyncio.gather(*(self.senders[name].more(count) for name in names or self.senders))

    def of_node(self, node: RedisServer) -> list[str]:
        """The partitions on a primary, by name."""
        return [
            partition.name
            for partition, backend in zip(self.backends[0].partitions, self.partitions, strict=True)
            if self._cluster.primary_of_key(backend.database.prefix) is node
        ]

    def away(self) -> list[list[str]]:
        """The partitions that cannot be written to, for each daemon."""
        return [[each.name for each in backend.partitions if each.problem()] for backend in self.backends]

    async def stop(self) -> None:
        """End the senders that a failed test leaves."""
        for senders in self.senders.values():
            await senders.stop()

    async def end(self) -> None:
        """Check that each partition has each answered message once and in order, and derived it once and in order."""
        await asyncio.gather(*(senders.end() for senders in self.senders.values()))
        for backend, senders in zip(self.partitions, self.senders.values(), strict=True):
            await is_derived(backend)
            events = await texts(backend, "event")
            assert max(Counter(events).values()) == 1
            assert {*events} == {*senders.answered}
            for sender in ("0-", "1-"):  # each waits for its answers, so its messages have an order
                own = [event for event in events if event.startswith(sender)]
                assert own == sorted(own, key=lambda event: int(event[2:]))
            counted = await backend.store.begin(NOW).get(Deriver.key)
            assert (await texts(backend, "derived"), counted) == (events, f"{len(events)}")


async def is_derived(backend: RedisBackend) -> None:
    """Wait until as many records are derived as events are stored now, by whichever daemon."""
    count = len(await texts(backend, "event"))
    async with asyncio.timeout(LONG):
        while len(await texts(backend, "derived")) < count:  # noqa: ASYNC110 - another daemon may derive
            await asyncio.sleep(0.05)


@asynccontextmanager
async def opened(
    cluster: RedisCluster,
    count: int,
    *,
    prefix: str | None = None,
    replicas: int | None = None,
    patience: float = 1.0,
) -> AsyncIterator[list[ClusterBackend]]:
    """Back ends of daemons. Their connections are named daemon-0, daemon-1 and so on."""
    prefix = prefix or f"{uuid4().hex}:"

    async def open_backend(number: int) -> ClusterBackend:
        query = f"?client_name=daemon-{number}"
        while True:
            backend = cluster_backend(
                cluster,
                prefix=prefix,
                query=query,
                partitions=PARTITIONS,
                timeout=_TIMEOUT,
                patience=patience,
                replicas=replicas,
            )
            with suppress(Unavailable):  # the nodes of a busy machine may not answer in time
                await backend.open(serving=True)
                return backend

    async with AsyncExitStack() as stack:
        backends = []
        for number in range(count):
            async with asyncio.timeout(LONG):
                backend = await open_backend(number)
            stack.push_async_callback(backend.close)
            backends.append(backend)
        yield backends


@asynccontextmanager
async def serving(
    cluster: RedisCluster, *, replicas: int | None = None, patience: float = 1.0
) -> AsyncIterator[Daemons]:
    async with opened(cluster, 2, replicas=replicas, patience=patience) as backends, AsyncExitStack() as stack:
        # On a busy machine some partitions are opened later.
        await until(lambda: not any(backend.problem() for backend in backends), LONG)
        for backend in backends:
            for partition in backend.backends:
                await stack.enter_async_context(running(partition, Deriver(), patience=LONG))
        daemons = Daemons(cluster, backends)
        stack.push_async_callback(daemons.stop)
        await daemons.more(20)
        yield daemons
        await daemons.end()
