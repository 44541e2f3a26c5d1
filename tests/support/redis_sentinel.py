"""Redis servers and Sentinels: one primary and its replicas, with the name `shop`."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import redis

from ingestd.api.options import Address

from .clients import wait_until
from .ports import free_port
from .redis_server import RedisServer
from .signals import send_signal

__all__ = ["URL", "SentinelProcess", "WatchedRedis", "watched_redis"]

URL = "redis://:shop@shop/0"
_OPTIONS = {
    "repl-diskless-sync-delay": "0",
    "requirepass": "shop",
    # The user of Sentinels and replicas. Without its rights they cannot reach a server, but daemons can.
    "user": "peers on >peers ~* &* +@all",
    "masteruser": "peers",
    "masterauth": "peers",
}
# The milliseconds between two checks of a server, and the time that a stopped Sentinel ignores its data.
_PERIODS = ("info-period", 500, "publish-period", 500, "ping-period", 200, "tilt-period", 500)


class _Server(RedisServer):
    @property
    def url(self) -> str:
        """The URL with the Sentinels' name of the primary as host."""
        return URL

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password="shop", socket_timeout=5)

    def follow(self, primary: RedisServer) -> None:
        self.options["replicaof"] = f"127.0.0.1 {primary.port}"
        if self.is_running:
            with self.client() as client:
                client.execute_command("ACL SETUSER", "peers", "on")
                for kind in ("normal", "pubsub"):  # Sentinels would wait 15 seconds after a refused connection
                    client.client_kill_filter(_type=kind, skipme=True)
                client.replicaof("127.0.0.1", primary.port)
        else:
            self.start()


class SentinelProcess:
    """One Sentinel."""

    def __init__(self, folder: Path, primary: RedisServer, quorum: int, password: str = "peers") -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        self._folder = folder
        (folder / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor shop 127.0.0.1 {primary.port} {quorum}\n"
            f"sentinel auth-user shop peers\nsentinel auth-pass shop {password}\n"
            "sentinel down-after-milliseconds shop 500\nsentinel failover-timeout shop 1000\n"
        )

    def start(self) -> None:
        program = shutil.which("redis-server")
        assert program is not None
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, self._folder / "sentinel.conf", "--sentinel"], stdout=log, stderr=log
            )
        wait_until(self.answers)
        with self.client() as client, suppress(redis.ResponseError):  # Redis 6 has no such command, so it is slower
            client.execute_command("SENTINEL DEBUG", *_PERIODS)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        send_signal(self.process, number)

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=5)

    @property
    def primary_port(self) -> int:
        with self.client() as client:
            answer = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "shop")
        return int(answer[1])

    def knows(self, replicas: int, others: int) -> bool:
        try:
            with self.client() as client:
                good = [each["master-link-status"] == "ok" for each in client.sentinel_slaves("shop")]
                return good.count(True) >= replicas and client.sentinel_master("shop")["num-other-sentinels"] == others
        except redis.RedisError:
            return False


class WatchedRedis:
    """Servers, and the Sentinels that watch them."""

    def __init__(self, servers: Sequence[_Server], sentinels: Sequence[SentinelProcess]) -> None:
        self.servers = servers
        self.sentinels = sentinels

    @property
    def primary(self) -> _Server:
        """The primary according to the Sentinels."""
        (port,) = {sentinel.primary_port for sentinel in self.sentinels}
        return next(server for server in self.servers if server.port == port)

    @property
    def replicas(self) -> list[_Server]:
        primary = self.primary
        return [server for server in self.servers if server is not primary]

    def server(self, address: str | None) -> _Server:
        return next(server for server in self.servers if address == f"127.0.0.1:{server.port}")

    @property
    def addresses(self) -> list[Address]:
        return [sentinel.address for sentinel in self.sentinels]

    def fail_over(self) -> None:
        """Fails over like an operator during maintenance, with all servers running."""
        with self.sentinels[0].client() as client:
            client.execute_command("SENTINEL FAILOVER", "shop")

    def cut_off(self, server: RedisServer) -> None:
        """Cuts off a server from Sentinels and replicas, but not from daemons."""
        with server.client() as client:
            client.execute_command("ACL SETUSER", "peers", "off")
            client.client_kill_filter(user="peers")

    def reunite(self) -> None:
        """Starts all servers, lets them follow the primary, and informs the Sentinels. They would take ten seconds."""
        processes: list[_Server | SentinelProcess] = [*self.servers, *self.sentinels]
        for process in processes:
            if process.is_running:
                process.signal(signal.SIGCONT)
        wait_until(lambda: len({sentinel.primary_port for sentinel in self.sentinels}) == 1, 30)
        primary = self.primary
        for server in self.servers:
            if server is not primary:
                server.follow(primary)
        self.settle()

    def settle(self) -> None:
        """Waits until replicas have the primary's data, and each Sentinel knows all servers and the other Sentinels."""
        count, others = len(self.servers) - 1, len(self.sentinels) - 1
        wait_until(lambda: self._is_replicated(count), 30)
        wait_until(lambda: all(each.knows(count, others) for each in self.sentinels), 30)

    def has_replica(self) -> bool:
        """Whether the Sentinels agree on a primary, and one replica has what is written to it now."""
        return len({sentinel.primary_port for sentinel in self.sentinels}) == 1 and self._is_replicated(1)

    def _is_replicated(self, count: int) -> bool:
        """Whether so many replicas have what is written to the primary now."""
        with self.primary.client() as client:
            try:
                return bool(client.set("other", "")) and client.wait(count, 100) == count
            except redis.ResponseError:  # it has just become a replica: the Sentinels have chosen another one
                return False


@contextmanager
def watched_redis(folder: Path, *, replicas: int, sentinels: int) -> Iterator[WatchedRedis]:
    """Servers and Sentinels. Each Sentinel knows all servers and the other Sentinels."""
    with ExitStack() as stack:
        servers: list[_Server] = []
        for number in range(replicas + 1):
            follows = {"replicaof": f"127.0.0.1 {servers[0].port}"} if servers else {}
            server = _Server(folder / f"redis-{number}", {**_OPTIONS, **follows})
            stack.callback(server.kill)
            server.start()
            servers.append(server)
        watching = [
            SentinelProcess(folder / f"sentinel-{number}", servers[0], sentinels // 2 + 1)
            for number in range(sentinels)
        ]
        for sentinel in watching:
            stack.callback(sentinel.end)
            sentinel.start()
        watched = WatchedRedis(servers, watching)
        watched.settle()
        yield watched
