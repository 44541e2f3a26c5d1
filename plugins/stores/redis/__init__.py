"""Redis back end: journal and state for several daemons, or the state alone with a journal in SQLite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError
from ingestd.api.hookspecs import BackendFactory, Daemon
from ingestd.api.options import Address, Duration, PositiveDuration, Secret
from ingestd.api.options import Options as BaseOptions

__all__ = ["RedisPlugin"]

_LONGEST_PATIENCE = Duration.parse("5m")  # `_REPEATED` in link.py


class RedisPlugin:
    class Options(BaseOptions):
        prefix: Annotated[str, Meta(min_length=1, max_length=64)] = "ingestd:"
        timeout: PositiveDuration = Duration.parse("1s")
        patience: PositiveDuration = Duration.parse("3s")
        wait_replicas: Annotated[int, Meta(ge=0)] | None = None
        """None means 1 with Sentinels or with the replicas of a cluster, and otherwise 0."""
        promotion_grace: Duration = Duration.parse("30s")
        accept_loss: bool = False
        sentinels: tuple[str, ...] = ()
        sentinel_password: Secret | None = None
        partitions: Annotated[int, Meta(ge=1, le=1024)] = 64
        """Of a cluster. The number is fixed when the store is made."""

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or self.Options()
        try:
            self._sentinels = [Address.parse(sentinel) for sentinel in self._options.sentinels]
        except ValueError as error:
            raise ConfigError(f"plugins.redis.sentinels: {error}") from None
        if self._options.patience > _LONGEST_PATIENCE:
            reason = f"expected at most {_LONGEST_PATIENCE}: what is sent again later, Redis could store twice"
            raise ConfigError(f"plugins.redis.patience: {reason}")
        self._made: list[Any] = []

    @hookimpl
    def register_stores(self, register: Callable[[str, BackendFactory], None]) -> None:
        for scheme in ("redis", "rediss", "unix"):
            register(scheme, self._make)
        for scheme in ("redis+cluster", "rediss+cluster"):
            register(scheme, self._make_cluster)

    def _make(self, url: str, base: Path) -> Any:
        # Imported only where it is used: the import takes a tenth of a second.
        from .backend import RedisBackend
        from .servers import make_pool

        options = self._options
        timeout = float(options.timeout)
        replicas = options.wait_replicas
        if replicas is None:
            replicas = 1 if self._sentinels else 0
        backend = RedisBackend(
            make_pool(url, self._sentinels, timeout=timeout, password=options.sentinel_password),
            prefix=options.prefix,
            timeout=timeout,
            patience=float(options.patience),
            replicas=replicas,
            promotion_grace=float(options.promotion_grace),
            accept_loss=options.accept_loss,
        )
        self._made.append(backend)
        return backend

    def _make_cluster(self, url: str, base: Path) -> Any:
        from .cluster.backend import ClusterBackend, ClusterOptions
        from .cluster.connections import parse_cluster_url

        options = self._options
        if self._sentinels:
            raise ConfigError("plugins.redis.sentinels: a Redis Cluster needs no Sentinels; leave this option out")
        backend = ClusterBackend(
            parse_cluster_url(url),
            ClusterOptions(
                partitions=options.partitions,
                prefix=options.prefix,
                timeout=float(options.timeout),
                patience=float(options.patience),
                replicas=options.wait_replicas,
                promotion_grace=float(options.promotion_grace),
                accept_loss=options.accept_loss,
            ),
        )
        self._made += backend.backends
        return backend

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        if self._made:
            from .metrics import RedisCollector

            daemon.registry.register(RedisCollector(self._made))
