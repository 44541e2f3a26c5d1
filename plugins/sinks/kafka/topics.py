"""The topics: creating and checking them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from threading import Event
from typing import Any

from ingestd.api.errors import SinkRetry

from .cluster import Cluster
from .options import KafkaOptions

__all__ = ["Topics"]


class Topics:
    """The topics of a sink. All methods block until `stop`, and raise `SinkRetry`: no record is at fault."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._known: set[str] = set()

    def forget(self) -> None:
        """Look for all topics again before the next messages, because a topic may be gone."""
        self._known.clear()

    def reach(self, names: Iterable[str], stop: Event) -> None:
        """Connect to the cluster, and create the topics that do not exist."""
        with Cluster(self._options, stop) as cluster:
            cluster.reach()
            for name in names:
                if self._find(cluster, name) is None:
                    cluster.create(name)
                self._known.add(name)

    def ensure(self, names: AbstractSet[str], stop: Event) -> None:
        """Create the topics that do not exist."""
        if not names <= self._known:
            self.reach(names - self._known, stop)

    def check(self, names: Iterable[str], stop: Event) -> None:
        """Raise the reason why messages to these topics, or to all known ones, would fail."""
        with Cluster(self._options, stop) as cluster:
            cluster.reach()
            for name in names or [*self._known]:
                _check(name, self._find(cluster, name))

    def shortage(self, names: Iterable[str], stop: Event) -> str | None:
        """The reason why the brokers acknowledge no messages to these topics, if they can tell it."""
        try:
            with Cluster(self._options, stop) as cluster:
                for name in names:
                    found = cluster.find(name)
                    _check(name, found)
                    _check_replicas(name, found)
        except SinkRetry as error:
            return str(error)
        return None

    def _find(self, cluster: Cluster, name: str) -> Any:
        found = cluster.find(name)
        if found is None and not self._options.create:
            raise SinkRetry(f"there is no topic {name}, and create is false")
        return found


def _check(name: str, found: Any) -> None:
    for partition in found.partitions.values() if found is not None else ():  # a missing topic is to be created
        if partition.leader < 0:
            raise SinkRetry(f"partition {partition.id} of the topic {name} has no leader")


def _check_replicas(name: str, found: Any) -> None:
    for partition in found.partitions.values() if found is not None else ():
        in_sync, all_ = len(partition.isrs), len(partition.replicas)
        if in_sync < all_:
            raise SinkRetry(f"partition {partition.id} of the topic {name} has {in_sync} of {all_} replicas in sync")
