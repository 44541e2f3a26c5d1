"""Redis Cluster as a back end with partitions."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from redis.crc import key_slot
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from ingestd.api.backend import Backend, DaemonProcess, Partition
from ingestd.api.check_result import CheckResult
from ingestd.api.errors import ConfigError, Unavailable
from ingestd.api.options import Address

from ..backend import RedisBackend, describe_daemons, lacking_replicas
from ..beats import Beats
from ..refusals import explain
from ..servers import answer_within
from ..work_sharing import WorkSharing
from .connections import ClusterUrl, SlotPool, make_topology
from .topology import SLOTS, Topology, partition_tags

__all__ = ["ClusterBackend", "ClusterOptions"]

_log = logging.getLogger("ingestd.redis")

_OPENED_AT_ONCE = 32  # partitions
_COVERAGE = "cluster-require-full-coverage"
_MIGRATION = "cluster-allow-replica-migration"
_BARRIER = "cluster-migration-barrier"
_AGAIN = 1.0  # seconds between two attempts to open a partition that is away


class ClusterOptions(NamedTuple):
    """`Link` explains the options of a partition. Times are in seconds."""

    partitions: int
    prefix: str
    timeout: float
    patience: float
    replicas: int | None
    """None: 1 if the cluster has replicas, otherwise 0."""
    promotion_grace: float
    accept_loss: bool


class ClusterBackend(Backend):
    """Each partition is what one Redis is to a `RedisBackend`. All its keys are in one slot, and so on one node.

    A hash tag, which is in the prefix of every key, decides the slot.
    """

    is_shared = True

    def __init__(self, url: ClusterUrl, options: ClusterOptions) -> None:
        """Raises `ConfigError`."""
        if {"{", "}"} & {*options.prefix}:
            raise ConfigError(f"plugins.redis.prefix: {options.prefix!r} has a brace, which a cluster gives a meaning")
        self.topology = make_topology(url, timeout=options.timeout)
        self.options = options
        self._to_report = asyncio.Event()
        width = max(2, len(str(options.partitions - 1)))
        self._names = [f"{number:0{width}}" for number in range(options.partitions)]
        self._tags = partition_tags(options.partitions)
        prefixes = [f"{options.prefix}{name}{{{tag}}}:" for name, tag in zip(self._names, self._tags, strict=True)]
        self._slots = [key_slot(prefix.encode()) for prefix in prefixes]
        self.backends = [self._make_partition(url, number, prefix) for number, prefix in enumerate(prefixes)]
        self._partitions = [
            Partition(name, backend.store, backend.journal, partial(self._problem_of, number), backend.contents)
            for number, (name, backend) in enumerate(zip(self._names, self.backends, strict=True))
        ]
        self._away: dict[int, str] = {}
        """The partitions that could not be opened yet, by number, each with the reason."""
        self._opening: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None

    def _make_partition(self, url: ClusterUrl, number: int, prefix: str) -> RedisBackend:
        options = self.options
        pool = SlotPool(self.topology, self._slots[number], url, timeout=options.timeout)
        return RedisBackend(
            pool,
            prefix=prefix,
            timeout=options.timeout,
            patience=options.patience,
            promotion_grace=options.promotion_grace,
            accept_loss=options.accept_loss,
            name=self._names[number],
            sharing=WorkSharing(number, self._to_report, options.partitions),
        )

    @property
    def partitions(self) -> Sequence[Partition]:
        return self._partitions

    async def places(self) -> Sequence[Mapping[str, str | int]]:
        found: list[Mapping[str, str | int]] = []
        for slot in self._slots:
            try:
                node = str(await self.topology.primary_of(slot))
            except RedisError:  # the partition's journal cannot be read either, which is reported
                node = "-"
            found.append({"node": node, "slot": slot})
        return found

    async def open(self, *, serving: bool) -> None:
        try:
            await self._learn_nodes()
            await self._open_all(serving=serving)
            await self._keep_number(serving=serving)
            if serving:
                beats = Beats([each.beat for each in self.backends], self.topology.connection_to, self._to_report)
                self._beating = asyncio.create_task(beats.run(), name="redis: beats")
                for warning in dict.fromkeys(each for backend in self._opened for each in backend.warnings):
                    _log.warning("%s", warning)
                async for result in describe_settings(self.topology, self._waits_for):
                    _log.warning("%s", result.text)
        except BaseException:
            await self.close()
            raise

    async def _refresh(self) -> None:
        """Ask the nodes anew. Raises `Unavailable` or `ConfigError`."""
        try:
            await answer_within(self.options.timeout, self.topology.refresh)
        except (AuthenticationError, NoPermissionError) as error:
            raise ConfigError(f"the Redis Cluster refuses access: {explain(error)}") from error
        except (RedisError, OSError, TimeoutError) as error:
            raise Unavailable(f"The Redis Cluster cannot be reached: {explain(error)}.") from error

    async def _learn_nodes(self) -> None:
        await self._refresh()
        replicas = self.options.replicas
        if replicas is None:
            replicas = min(self.topology.replicas, 1)
        for backend in self.backends:
            backend.database.options = backend.database.options._replace(replicas=replicas)

    @property
    def _waits_for(self) -> int:
        return self.backends[0].database.options.replicas

    async def _open_all(self, *, serving: bool) -> None:
        """Raises `Unavailable` without the first partition. It has what belongs to no tenant, such as the keys."""
        name, some = uuid4().hex, asyncio.Semaphore(_OPENED_AT_ONCE)

        async def open_one(backend: RedisBackend) -> None:
            async with some:
                await backend.open(serving=serving, name=name)

        self._away = {}
        results = await asyncio.gather(*map(open_one, self.backends), return_exceptions=True)
        for number, error in enumerate(results):
            if isinstance(error, BaseException) and (number == 0 or not isinstance(error, Unavailable)):
                raise error
            if error is not None:
                self._away[number] = str(error)
        if self._away and serving:
            _log.warning("events cannot be stored: %s", self.problem())
            self._opening = asyncio.create_task(self._open_others(name), name="redis: opening")

    async def _open_others(self, name: str) -> None:
        while self._away:
            await asyncio.sleep(_AGAIN)
            for number in [*self._away]:
                try:
                    await self.backends[number].open(serving=True, name=name)
                except (Unavailable, ConfigError) as error:
                    self._away[number] = str(error)
                else:
                    del self._away[number]
                    _log.info("%sevents can be stored", self.backends[number].database.link.label)

    @property
    def _opened(self) -> list[RedisBackend]:
        return [backend for number, backend in enumerate(self.backends) if number not in self._away]

    async def receive_copy(self) -> None:
        await self._keep_number(serving=True)

    async def _keep_number(self, *, serving: bool) -> None:
        """The number of partitions is kept in the slot of the first. Raises `ConfigError` for another number.

        The key and its slot are the same for every number. The name of the first partition is not: 00, 000 or 0000.
        """
        database, number = self.backends[0].database, self.options.partitions
        key = f"{self.options.prefix}{{{self._tags[0]}}}:partitions"
        if serving:
            await database.pipeline(("SET", key, number, "NX"))
        (kept,) = await database.pipeline(("GET", key))
        if kept is not None and int(kept) != number:
            raise ConfigError(
                f"plugins.redis.partitions is {number}, but the store was made with {int(kept)}, which cannot change."
                f" Set [plugins.redis] partitions = {int(kept)}, or begin an empty store under another prefix"
            )

    async def close(self) -> None:
        tasks = [task for task in (self._opening, self._beating) if task is not None]
        self._opening = self._beating = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(backend.close() for backend in self.backends))
        await self.topology.close()

    def _problem_of(self, number: int) -> str | None:
        return self._away.get(number) or self.backends[number].problem()

    def problem(self) -> str | None:
        away: defaultdict[str, list[str]] = defaultdict(list)
        for partition in self._partitions:
            if (reason := partition.problem()) is not None:
                away[reason].append(partition.name)
        return "; ".join(f"{name_all(names)}: {reason}" for reason, names in away.items()) or None

    async def daemons(self) -> Sequence[DaemonProcess]:
        await self.open(serving=False)
        try:
            return await self._running()
        finally:
            await self.close()

    async def _running(self) -> list[DaemonProcess]:
        found = await asyncio.gather(*(backend.running() for backend in self._opened))
        return [*dict.fromkeys(daemon for some in found for daemon in some)]

    async def describe(self) -> Sequence[CheckResult]:
        await self._refresh()
        found = [describe_nodes(self.topology), await self._describe_partitions()]
        lacking: dict[RedisBackend, str | None] = {}
        for node, backends in sorted((await self._by_node()).items()):
            results = await backends[0].describe_server()
            lacking |= dict.fromkeys(backends, lacking_replicas(results))
            found += [result._replace(text=f"{node}: {result.text}") for result in results]
        found += [each async for each in describe_settings(self.topology, self._waits_for)]
        found.append(describe_daemons(await self._running()))
        failures = await asyncio.gather(*(self._try_write(number, lacking) for number in range(len(self.backends))))
        failed = {name: failure for name, failure in zip(self._names, failures, strict=True) if failure is not None}
        if failed:
            text = f"a trial write fails in {name_all([*failed])}: {next(iter(failed.values()))}"
            found.append(CheckResult("write", text, "unavailable"))
        else:
            found.append(CheckResult("write", "a trial write is in every partition"))
        return found

    async def _try_write(self, number: int, lacking: Mapping[RedisBackend, str | None]) -> str | None:
        """`lacking` says of backends whether, and why, replicas are missing."""
        backend = self.backends[number]
        return self._away.get(number) or lacking.get(backend) or await backend.try_write()

    async def _by_node(self) -> dict[Address, list[RedisBackend]]:
        """The partitions of each node."""
        nodes: defaultdict[Address, list[RedisBackend]] = defaultdict(list)
        for number, (backend, slot) in enumerate(zip(self.backends, self._slots, strict=True)):
            if number in self._away:
                continue
            with suppress(RedisError):  # the write to the partition fails too
                nodes[await self.topology.primary_of(slot)].append(backend)
        return dict(nodes)

    async def _describe_partitions(self) -> CheckResult:
        spread = {str(node): len(backends) for node, backends in sorted((await self._by_node()).items())}
        text = ", ".join(f"{count} on {node}" for node, count in spread.items())
        return CheckResult("partitions", f"{len(self.backends)}: {text}", facts={"nodes": spread})


def name_all(names: Sequence[str]) -> str:
    """Partitions in an error."""
    return f"partition{'' if len(names) == 1 else 's'} {', '.join(names)}"


async def describe_settings(topology: Topology, waits_for: int) -> AsyncIterator[CheckResult]:
    """Warnings of settings of the nodes. `waits_for` is `wait_replicas`."""
    settings = await topology.settings(_COVERAGE, _MIGRATION, _BARRIER)
    strict = [str(node) for node, found in settings.items() if found.get(_COVERAGE) == "yes"]
    if strict:
        text = (
            f"{_COVERAGE} is yes on {', '.join(strict)}: one primary that is away then stops the tenants of all nodes."
            f" Set {_COVERAGE} no on every node, also on replicas"
        )
        yield CheckResult("coverage", text, "warning", {"nodes": strict})
    # The replica decides, by its own settings. It leaves its primary only if the barrier's number of others stay there.
    leaving = [
        str(node)
        for node, found in settings.items()
        if found.get(_MIGRATION, "yes") == "yes" and int(found.get(_BARRIER, waits_for)) < waits_for
    ]
    if leaving:
        text = (
            f"{_BARRIER} is below wait_replicas = {waits_for} on {', '.join(leaving)}: Redis may give a replica to"
            " another primary for good. The tenants of the former primary then get 503 although all nodes are up."
            f" Set {_BARRIER} {waits_for} or {_MIGRATION} no on every node, also on replicas"
        )
        yield CheckResult("migration", text, "warning", {"nodes": leaving, "wait_replicas": waits_for})


def describe_nodes(topology: Topology) -> CheckResult:
    primaries, replicas, covered, silent = topology.primaries, topology.replicas, topology.covered, topology.silent
    text = f"{len(primaries)} primaries and {replicas} replicas have {covered} of {SLOTS} slots"
    facts = {"primaries": [str(node) for node in primaries], "replicas": replicas, "slots": covered}
    if silent or covered < SLOTS:
        text = "; ".join([text, *(f"no answer from {each}" for each in silent)])
        return CheckResult("cluster", text, "warning", facts)
    return CheckResult("cluster", text, facts=facts)
