"""Durability of the Redis server's data, asked at the start and by `ingestd check`."""

from __future__ import annotations

from typing import Any, NamedTuple

from redis import asyncio as aioredis
from redis.exceptions import NoPermissionError, ResponseError

from ingestd.api.check_result import CheckResult
from ingestd.api.errors import ConfigError

__all__ = ["Durability", "ask", "replication", "require"]


class Durability(NamedTuple):
    """Facts about the server; None where it does not say."""

    version: str
    role: str
    replicas: int | None
    """Number of connected replicas."""
    appendonly: bool | None
    appendfsync: str | None
    policy: str | None
    mode: str | None
    """`standalone`, or `cluster` if the server is a node of a cluster."""

    @property
    def known(self) -> bool:
        return self.appendonly is not None and self.policy is not None

    @property
    def text(self) -> str:
        kept = {None: "it does not say whether it keeps its data", False: "appendonly no"}.get(
            self.appendonly, f"appendonly yes, appendfsync {self.appendfsync or 'unknown'}"
        )
        return f"{kept}, maxmemory-policy {self.policy or 'unknown'}"


async def ask(client: aioredis.Redis) -> Durability:
    server = await _info(client, "server")
    replication = await _info(client, "replication")
    persistence = await _info(client, "persistence")
    memory = await _info(client, "memory")
    aof = persistence.get("aof_enabled")
    return Durability(
        str(server.get("redis_version", "unknown")),
        str(replication.get("role", "unknown")),
        replication.get("connected_slaves"),
        None if aof is None else bool(int(aof)),
        await _setting(client, "appendfsync"),
        memory.get("maxmemory_policy"),
        server.get("redis_mode") or server.get("server_mode"),  # the latter is Valkey's
    )


async def _info(client: aioredis.Redis, section: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await client.info(section)
    except (NoPermissionError, ResponseError):  # forbidden to this user, or missing in this service
        return {}
    return found


async def _setting(client: aioredis.Redis, name: str) -> str | None:
    """A setting of the server; None if it does not say."""
    try:
        found = await client.config_get(name)
    except (NoPermissionError, ResponseError):
        return None
    value: str | None = found.get(name)
    return value


def replication(found: Durability, *, waits_for: int, with_sentinels: bool, grace: float) -> CheckResult:
    """Whether answered events survive a replacement of the primary. `grace` is `promotion_grace` in seconds."""
    replicas = found.replicas or 0
    facts = {"replicas": found.replicas, "wait_replicas": waits_for}
    connected = f"{replicas} replica{'' if replicas == 1 else 's'}"
    if found.replicas is not None and replicas < waits_for:
        return CheckResult(
            "replicas",
            f"Redis has {connected} and wait_replicas is {waits_for}: events get 503, and sinks and attribution wait,"
            " until more replicas follow",
            "unavailable",
            facts,
        )
    if waits_for or not (replicas or with_sentinels):
        text = f"an answer waits for {waits_for} of {connected}"
        if 0 < waits_for < replicas:
            text += (
                ". If the network cuts the primary off together with a replica, answered events are lost."
                f" wait_replicas = {replicas} keeps them, but then one replica that is away leads to 503"
            )
        if waits_for and grace:
            text += f". For promotion_grace = {grace:g}s after a failover, an answer waits for none"
        return CheckResult("replicas", text, facts=facts)
    return CheckResult(
        "replicas",
        f"Redis has {connected} and wait_replicas is 0: a failover loses events that were answered 200."
        f" Set [plugins.redis] wait_replicas = {max(replicas, 1)}",
        "warning",
        facts,
    )


def require(found: Durability, *, accept_loss: bool) -> None:
    """Raises `ConfigError` if the server may lose data, unless `accept_loss` accepts that."""
    if accept_loss:
        return
    cure = "or set [plugins.redis] accept_loss = true"
    if found.appendonly is False:
        raise ConfigError(
            f"Redis has appendonly no: a restart would lose events that were answered 200. Set appendonly yes, {cure}"
        )
    if found.policy is not None and found.policy != "noeviction":
        raise ConfigError(
            f"Redis has maxmemory-policy {found.policy}: with its memory full it would drop events answered 200."
            f" Set maxmemory-policy noeviction, {cure}"
        )
