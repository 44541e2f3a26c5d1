"""The nodes of a cluster, and the primary of each slot, as most recently claimed by the nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from redis.asyncio.connection import Connection
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, ClusterDownError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from ingestd.api.errors import ConfigError
from ingestd.api.options import Address

from ..refusals import explain

__all__ = ["SLOTS", "Claim", "NodeAnswer", "Topology", "partition_tags", "read_answer"]

SLOTS = 16_384
_FRESH = 0.25  # seconds for which an answer serves further connections
_STRAGGLERS = 0.1  # seconds for which the slowest nodes are waited for, once most have answered

_REFUSALS = (ConfigError, AuthenticationError, NoPermissionError)


class Claim(NamedTuple):
    """A primary has these slots, according to one node."""

    first: int
    last: int
    epoch: int
    """Grows whenever the primary of a slot changes. Of two claims to a slot, the one with the higher epoch is right."""
    primary: Address
    replicas: tuple[Address, ...]
    """Those with data."""


class NodeAnswer(NamedTuple):
    """What one node knows."""

    claims: Sequence[Claim]
    replicas: int
    """The number of replicas of all primaries, also of those that are empty or away."""


class Topology:
    """Asks all known nodes at once, and only when a connection is made: a node refuses slots that it does not have.

    `options` are redis-py's options for connections. A refresh takes `limit` seconds at most.
    """

    def __init__(
        self,
        nodes: Sequence[Address],
        options: Mapping[str, Any],
        *,
        limit: float,
        make_connection: Callable[..., Connection] = Connection,
    ) -> None:
        self._given = tuple(nodes)
        self._options = options
        self._limit = limit
        self._make_connection = make_connection
        self._connections: dict[Address, Connection] = {}
        self._answers: dict[Address, NodeAnswer] = {}
        """By node: its answer in the last refresh."""
        self._failures: dict[Address, Exception] = {}
        """By node: why it did not answer in the last refresh."""
        self._epochs: dict[int, int] = {}
        """By slot: the highest epoch of a claim that was used."""
        self._refreshing: asyncio.Task[None] | None = None
        self._fresh_until = 0.0

    @property
    def nodes(self) -> list[Address]:
        """All nodes: those given, until the others are known, and those of the last refresh."""
        named = [node for claim in self._all_claims() for node in (claim.primary, *claim.replicas)]
        return [*dict.fromkeys(named or self._given)]

    @property
    def primaries(self) -> list[Address]:
        """The nodes with slots."""
        return sorted({claim.primary for claim in self._all_claims()})

    @property
    def replicas(self) -> int:
        """The number of replicas of all primaries."""
        return max((answer.replicas for answer in self._answers.values()), default=0)

    @property
    def covered(self) -> int:
        """The number of slots with a primary."""
        slots = bytearray(SLOTS)
        for claim in self._all_claims():
            slots[claim.first : claim.last + 1] = b"\1" * (claim.last + 1 - claim.first)
        return sum(slots)

    @property
    def silent(self) -> list[str]:
        """The nodes that did not answer, each with the reason."""
        return [f"{node}: {explain(error)}" for node, error in sorted(self._failures.items())]

    async def primary_of(self, slot: int) -> Address:
        """The present primary of a slot. Raises `RedisError`."""
        if time.monotonic() >= self._fresh_until:
            await self.refresh()
        claims = [claim for claim in self._all_claims() if claim.first <= slot <= claim.last]
        if not claims:
            raise ClusterDownError(f"no node of the cluster has slot {slot}")
        newest = max(claims, key=lambda claim: (claim.epoch, claims.count(claim)))
        if newest.epoch < self._epochs.get(slot, 0) and 2 * len(self._answers) <= len(self.nodes):
            raise ClusterDownError("only nodes answer that do not know of the last failover yet")
        self._epochs[slot] = newest.epoch
        return newest.primary

    def connection_to(self, node: Address) -> Connection:
        """A new connection, which is not open yet."""
        return self._make_connection(**{**self._options, "host": node.host, "port": node.port})

    async def refresh(self) -> None:
        """Raises `RedisError` if no node answers or gives access, and `ConfigError` if the nodes are no cluster."""
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh(), name="redis: topology")
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # those who wait have it, if any are left

    async def settings(self, *names: str) -> Mapping[Address, Mapping[str, str]]:
        """Settings of all nodes, replicas included. A node is missing if it does not answer or may not be asked."""

        async def ask(node: Address) -> Mapping[str, str] | None:
            connection = self.connection_to(node)
            try:
                async with asyncio.timeout(self._limit):
                    await connection.connect()
                    await connection.send_command("CONFIG", "GET", *names)
                    found = [each.decode() for each in await connection.read_response()]
            except (RedisError, OSError, TimeoutError):
                return None
            finally:
                await connection.disconnect(nowait=True)
            return dict(zip(found[::2], found[1::2], strict=True))

        nodes = sorted(self.nodes)
        answers = zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True)
        return {node: found for node, found in answers if found is not None}

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.disconnect(nowait=True)
        self._fresh_until = 0.0

    async def _refresh(self) -> None:
        asking = {asyncio.create_task(self._ask(node)): node for node in dict.fromkeys((*self.nodes, *self._given))}
        try:
            await self._most(asking)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)
        answers, failures = {}, {}
        for task, node in asking.items():
            error = TimeoutError() if task.cancelled() else task.exception()
            if error is None:
                answers[node] = task.result()
            elif isinstance(error, Exception):
                failures[node] = error
        self._failures = failures
        if not answers:
            refused = [error for error in failures.values() if isinstance(error, _REFUSALS)]
            raise refused[0] if refused else RedisConnectionError(f"no node answers ({'; '.join(self.silent)})")
        self._answers, self._fresh_until = answers, time.monotonic() + _FRESH

    async def _most(self, asking: Mapping[asyncio.Task[Any], Address]) -> None:
        """Wait for all answers, or for most of them and a moment longer."""
        loop = asyncio.get_running_loop()
        until, left = loop.time() + self._limit, set(asking)
        while left and (patience := until - loop.time()) > 0:
            _, left = await asyncio.wait(left, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            answered = sum(task.done() and task.exception() is None for task in asking)
            if 2 * answered > len(asking):
                until = min(until, loop.time() + _STRAGGLERS)

    async def _ask(self, node: Address) -> NodeAnswer:
        connection = self._connections.get(node)
        if connection is None:
            connection = self.connection_to(node)
            self._connections[node] = connection
        try:
            await connection.connect()
            await connection.send_packed_command(connection.pack_commands([("CLUSTER", "NODES"), ("CLUSTER", "SLOTS")]))
            nodes, slots = await connection.read_response(), await connection.read_response()
        except ResponseError as error:
            await connection.disconnect(nowait=True)
            if "cluster support disabled" in str(error):
                raise ConfigError(
                    f"{node} is no node of a cluster. Write redis://{node}/0 for a single Redis"
                ) from error
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return read_answer(node, nodes.decode(), slots)

    def _all_claims(self) -> list[Claim]:
        return [claim for answer in self._answers.values() for claim in answer.claims]


def read_answer(asked: Address, nodes: str, slots: Sequence[Any]) -> NodeAnswer:
    """The answer of a node to `CLUSTER NODES` and `CLUSTER SLOTS`.

    The second has the addresses that callers are to use, and the first has the epochs.
    """
    lines = [line.split(" ") for line in nodes.splitlines()]
    epochs = {words[0]: int(words[6]) for words in lines}
    claims = []
    for first, last, primary, *replicas in slots:
        addresses = [_address(asked, each) for each in (primary, *replicas)]
        claims.append(Claim(first, last, epochs.get(primary[2].decode(), 0), addresses[0], tuple(addresses[1:])))
    return NodeAnswer(claims, sum("slave" in words[2] for words in lines))


def _address(asked: Address, node: Sequence[Any]) -> Address:
    # Without a host: the host that was asked. "?" is a host that the node does not know.
    host = node[0].decode() if node[0] and node[0] != b"?" else asked.host
    return Address(host, node[1])


_BEGINNING = 4  # slots: the fewer, the longer the search


def partition_tags(partitions: int) -> list[str]:
    """A hash tag for each partition, so that the partitions are spread evenly over the slots.

    A node with a part of the slots has the same part of the partitions, give or take one. Hash tags made of the names
    of partitions would not do this: of 64, a third of the slots has 19 to 24. Stored data depends on the tags, so they
    never change.

    The slots are divided into equal ranges. A partition's tag is the first number whose slot is at the beginning of its
    range. So the first partition has the same tag whatever the number of partitions.
    """
    beginnings = {-(-index * SLOTS // partitions): index for index in range(partitions)}
    indices = {slot + offset: index for slot, index in beginnings.items() for offset in range(_BEGINNING)}
    tags: dict[int, str] = {}
    numbers = map(str, count())
    while len(tags) < partitions:
        tag = next(numbers)
        index = indices.get(key_slot(tag.encode()))
        if index is not None:
            tags.setdefault(index, tag)
    return [tags[index] for index in range(partitions)]
