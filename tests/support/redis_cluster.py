"""A Redis Cluster for tests: primaries, each with a replica, on free ports. It is killed at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from ingestd.plugins.stores.redis.cluster.backend import ClusterBackend, ClusterOptions
from ingestd.plugins.stores.redis.cluster.connections import parse_cluster_url

from .clients import wait_until
from .cuttable_network import CuttableNetwork
from .ports import free_port
from .redis_server import RedisServer

__all__ = ["RedisCluster", "cluster_backend", "redis_cluster"]

SLOTS = 16_384
_NODE_TIMEOUT = 1000  # milliseconds; a replica is promoted some two seconds after the death of its primary
_OPTIONS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": str(_NODE_TIMEOUT),
    "cluster-require-full-coverage": "no",  # a missing primary stops its slots only
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync-delay": "0",
    "appendfsync": "no",
}


class RedisCluster:
    """The nodes: first the primaries, then a replica of each, until failovers change that."""

    def __init__(self, nodes: Sequence[RedisServer], primaries: int) -> None:
        self.nodes = nodes
        self._count = primaries
        # A connection takes longer than most questions, and tests ask all nodes until they agree.
        self._clients = {node: node.client() for node in nodes}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    @property
    def url(self) -> str:
        return f"redis+cluster://{self.addresses}/"

    @property
    def addresses(self) -> str:
        """The nodes in the form of a URL; with TLS, their TLS ports."""
        return ",".join(f"127.0.0.1:{announced_port(node)}" for node in self.nodes)

    def node(self, port: int) -> RedisServer:
        """The node with this port, in an answer to a client without TLS."""
        return next(node for node in self.nodes if port in (node.port, announced_port(node)))

    def ask(self, node: RedisServer, *command: Any) -> Any:
        return self._clients[node].execute_command(*command)

    def id_of(self, node: RedisServer) -> str:
        return str(self.ask(node, "CLUSTER MYID").decode())

    def view(self, node: RedisServer) -> list[list[str]]:
        """The words of each line of `CLUSTER NODES`."""
        # Not `execute_command`: redis-py would parse the answer.
        pool = self._clients[node].connection_pool
        connection = pool.get_connection()
        try:
            connection.send_command("CLUSTER", "NODES")
            text = connection.read_response()
        finally:
            pool.release(connection)
        return [line.split(" ") for line in text.decode().splitlines()]

    @property
    def running(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.is_running]

    def primary_of(self, slot: int) -> RedisServer:
        """According to the running nodes, which agree."""

        def owners() -> set[int]:
            found = set()
            for node in self.running:
                for words in self.view(node):
                    if "master" in words[2] and "fail" not in words[2] and _has(words[8:], slot):
                        found.add(int(words[1].partition("@")[0].rpartition(":")[2]))
            return found

        wait_until(lambda: len(owners()) == 1, 20)
        return self.node(owners().pop())

    def primary_of_key(self, prefix: str) -> RedisServer:
        return self.primary_of(key_slot(prefix.encode()))

    def replica_of(self, primary: RedisServer) -> RedisServer:
        """One of them, as soon as the primary knows of it: its gossip may be older than the replica's connection."""
        name = self.id_of(primary)

        def ports() -> list[int]:
            lines = [words for words in self.view(primary) if words[3] == name and "fail" not in words[2]]
            return [int(words[1].partition("@")[0].rpartition(":")[2]) for words in lines]

        wait_until(lambda: bool(ports()), 20)
        return self.node(ports()[0])

    def primaries(self) -> list[RedisServer]:
        return [node for node in self.running if self.ask(node, "ROLE")[0] == b"master"]

    def move_slot(self, slot: int, to: RedisServer, *, parts: int = 1, pause: float = 0.0) -> int:
        """Move a slot with its keys, as `redis-cli --cluster reshard` does, in so many parts.

        Returns the number of keys.
        """
        source = self.primary_of(slot)
        if source is to:
            return 0
        self.ask(to, "CLUSTER SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", self.id_of(to))
        moved, keys_at_once = 0, 1 + self.ask(source, "CLUSTER COUNTKEYSINSLOT", slot) // parts
        while keys := self.ask(source, "CLUSTER GETKEYSINSLOT", slot, keys_at_once):
            self.ask(source, "MIGRATE", "127.0.0.1", announced_port(to), "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
            time.sleep(pause)
        for node in (to, source, *self.primaries()):
            self.ask(node, "CLUSTER SETSLOT", slot, "NODE", self.id_of(to))
        return moved

    def fail_over(self, primary: RedisServer) -> RedisServer:
        """Promote the replica as in maintenance, and return it."""
        replica = self.replica_of(primary)
        self.ask(replica, "CLUSTER FAILOVER")
        wait_until(lambda: replica in self.primaries(), 20)
        return replica

    def settle(self) -> None:
        """Start all nodes, and wait until they agree on all slots and each primary has an up-to-date replica."""
        for node in self.nodes:
            if not node.is_running:
                node.start()
        wait_until(self._is_settled, 40)

    def _is_settled(self) -> bool:
        try:
            for node in self.nodes:
                client = self._clients[node]
                known = client.cluster("INFO")
                if known["cluster_state"] != "ok" or known["cluster_slots_ok"] != str(SLOTS):
                    return False
                view = self.view(node)
                if any("fail" in words[2] for words in view):
                    return False
                facts = client.info("replication")
                has_replicas = len(self.nodes) > self._count
                if has_replicas and facts["role"] == "master" and _slots_of(view):
                    if facts["connected_slaves"] < 1:
                        return False
                    if facts["slave0"]["state"] != "online":
                        return False
        except redis.RedisError:
            return False
        return True


def _slots_of(view: list[list[str]]) -> bool:
    return any("myself" in words[2] and len(words) > 8 for words in view)


def _has(ranges: Sequence[str], slot: int) -> bool:
    for each in ranges:
        if each.startswith("["):
            continue
        first, _, last = each.partition("-")
        if int(first) <= slot <= int(last or first):
            return True
    return False


def announced_port(node: RedisServer) -> int:
    """The port for daemons and other nodes: that of a proxy with a `CuttableNetwork`, or that of TLS."""
    return int(node.options.get("cluster-announce-port") or node.options.get("tls-port") or node.port)


def cluster_backend(
    cluster: RedisCluster,
    *,
    prefix: str,
    query: str = "",
    partitions: int = 6,
    timeout: float = 0.5,
    patience: float = 1.0,
    replicas: int | None = None,
    promotion_grace: float = 0.0,
) -> ClusterBackend:
    """`query` is the end of the URL, with options of redis-py."""
    options = ClusterOptions(
        partitions=partitions,
        prefix=prefix,
        timeout=timeout,
        patience=patience,
        replicas=replicas,
        promotion_grace=promotion_grace,
        accept_loss=False,
    )
    return ClusterBackend(parse_cluster_url(cluster.url + query), options)


@contextmanager
def redis_cluster(
    folder: Path,
    *,
    primaries: int = 3,
    replicas: bool = True,
    options: Mapping[str, str] | None = None,
    network: CuttableNetwork | None = None,
    tls: tuple[Path, Path] | None = None,
) -> Iterator[RedisCluster]:
    """A cluster, with a replica of each primary or none. `options` are further ones of redis-server.

    In a `network`, each node has the name of its folder, and tests reach the nodes past the network. `tls` are files of
    a key and a certificate: daemons and nodes then connect with TLS only, and tests without.
    """
    with ExitStack() as stack:
        nodes = []
        for number in range(primaries * (2 if replicas else 1)):
            own = {**_OPTIONS, **(options or {})}
            if network is not None:
                own |= _announce(f"127.0.2.{number + 1}")
            if tls is not None:
                own |= _secure(*tls)
            node = RedisServer(folder / f"node-{number}", own)
            if network is not None:
                _connect(network, node)
            stack.callback(node.kill)
            node.start()
            nodes.append(node)
        cluster = RedisCluster(nodes, primaries)
        stack.callback(cluster.close)
        _join(cluster, nodes, primaries)
        yield cluster


def _announce(address: str) -> dict[str, str]:
    """The options of a node behind proxies, which connects to others from that address."""
    return {
        "bind-source-addr": address,
        "cluster-announce-ip": "127.0.0.1",
        "cluster-announce-port": str(free_port()),
        "cluster-announce-bus-port": str(free_port()),
    }


def _secure(key: Path, certificate: Path) -> dict[str, str]:
    return {
        "tls-port": str(free_port()),
        "tls-cluster": "yes",
        "tls-replication": "yes",
        "tls-key-file": str(key),
        "tls-cert-file": str(certificate),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
    }


def _connect(network: CuttableNetwork, node: RedisServer) -> None:
    options, name = node.options, node.folder.name
    network.name_client(name, options["bind-source-addr"])
    network.connect(name, announced_port(node), node.port)
    network.connect(name, int(options["cluster-announce-bus-port"]), int(options["cluster-port"]))


def _join(cluster: RedisCluster, nodes: Sequence[RedisServer], primaries: int) -> None:
    for number, node in enumerate(nodes):
        cluster.ask(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        if number:
            bus = nodes[0].options.get("cluster-announce-bus-port", nodes[0].options["cluster-port"])
            cluster.ask(node, "CLUSTER MEET", "127.0.0.1", announced_port(nodes[0]), bus)
        if number < primaries:
            first, last = number * SLOTS // primaries, (number + 1) * SLOTS // primaries - 1
            cluster.ask(node, "CLUSTER ADDSLOTSRANGE", first, last)
    wait_until(lambda: all(len(cluster.view(node)) == len(nodes) for node in nodes), 20)
    for number, node in enumerate(nodes[primaries:]):
        primary = cluster.id_of(nodes[number])
        wait_until(partial(_replicates, cluster, node, primary), 20)
    cluster.settle()


def _replicates(cluster: RedisCluster, node: RedisServer, primary: str) -> bool:
    try:
        cluster.ask(node, "CLUSTER REPLICATE", primary)
    except redis.ResponseError:  # it does not know the node's role yet
        return False
    return True
