"""The primary that the Sentinels name: looked up for each connection, and followed while a daemon serves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from redis import asyncio as aioredis
from redis.asyncio.connection import Connection
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ingestd.api.check_result import CheckResult
from ingestd.api.options import Address

__all__ = ["NewestPrimary", "SentinelAnswer", "SentinelPool", "Sentinels"]

_log = logging.getLogger("ingestd.redis")

_EVERY = 0.5  # seconds between two questions to a Sentinel
_PROMOTION = 5.0  # seconds for which an announced promotion may take
_DOUBT = 10.0  # seconds for which an older answer of the majority is ignored
_SILENCE = 3.0  # seconds without any Sentinel before a log line
_AGAIN = 60.0  # seconds between two such lines
_PROMOTING = b"+selected-slave"
_EVENTS = ("+selected-slave", "+switch-master", "-failover-abort-*")


class SentinelAnswer(NamedTuple):
    """The answer of a Sentinel."""

    epoch: int
    """Grows with each failover. Of two Sentinels that disagree, the one with the higher epoch is right."""
    primary: tuple[str, int]


class NewestPrimary:
    """The newest primary that any of `count` Sentinels has named."""

    def __init__(self, count: int) -> None:
        self.address: tuple[str, int] | None = None
        """Host and port."""
        self._count = count
        self._epoch = 0
        self._confirmed_at = 0.0

    def learn(self, answers: Sequence[SentinelAnswer], now: float) -> bool:
        """Returns whether the answers, at least one, name another primary than before."""
        epoch, before = max(answer.epoch for answer in answers), self.address
        if epoch >= self._epoch:
            self._confirmed_at = now
        elif 2 * len(answers) <= self._count or now - self._confirmed_at < _DOUBT:
            return False  # from Sentinels that were cut off, or do not know of the failover yet
        named = Counter(answer.primary for answer in answers if answer.epoch == epoch)
        self._epoch, self.address = epoch, max(named, key=lambda each: (named[each], each == before))
        return self.address != before


class Sentinels:
    """The Sentinels of one primary. `options` are redis-py's options for connections to them."""

    def __init__(self, service: str, addresses: Sequence[Address], options: Mapping[str, Any]) -> None:
        self._service = service
        self._addresses = addresses
        self._clients = [aioredis.Redis(host=address.host, port=address.port, **options) for address in addresses]
        self._answers: dict[int, SentinelAnswer | str] = {}
        """By Sentinel: its last answer, or its error."""
        self._newest = NewestPrimary(len(addresses))
        self._promoting_until = 0.0
        self._silent_since: float | None = None
        self._silence_told_at: float | None = None
        self._watching = False

    @property
    def primary(self) -> tuple[str, int] | None:
        """Host and port of the newest primary that a Sentinel has named."""
        return self._newest.address

    @property
    def is_promoting(self) -> bool:
        """Whether the Sentinels are about to replace the primary. It may lose writes that it takes meanwhile."""
        return time.monotonic() < self._promoting_until

    async def discover_master(self, service: str) -> tuple[str, int]:
        """The primary's address, under redis-py's name for it. Raises `MasterNotFoundError`."""
        if self.primary is None or not self._watching:
            await asyncio.gather(*(self._ask(number) for number in range(len(self._clients))))
        if self.is_promoting:
            raise MasterNotFoundError(f"the Sentinels are about to name another primary of {service}")
        if self.primary is None:
            raise MasterNotFoundError(f"no Sentinel names the primary of {service} ({self._failures()})")
        return self.primary

    async def watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Ask and listen to every Sentinel until cancelled. `changed` is called after each answer and event."""
        self._watching = True
        async with asyncio.TaskGroup() as tasks:
            for number in range(len(self._clients)):
                tasks.create_task(self._follow(number, changed), name=f"redis: sentinel {number}")
            try:
                await asyncio.Event().wait()
            finally:
                self._watching = False

    async def close(self) -> None:
        for client in self._clients:
            await client.connection_pool.disconnect()

    def describe(self) -> CheckResult:
        count = sum(
            isinstance(answer, SentinelAnswer) and answer.primary == self.primary for answer in self._answers.values()
        )
        host, port = self.primary or ("", 0)
        text = f"{count} of {len(self._clients)} Sentinels name {host}:{port}"
        if count == len(self._clients):
            return CheckResult("sentinels", text)
        return CheckResult("sentinels", f"{text} ({self._failures() or 'the others name another server'})", "warning")

    async def _follow(self, number: int, changed: Callable[[], Awaitable[None]]) -> None:
        while self._watching:  # redis-py swallows some cancellations
            try:
                async with self._clients[number].pubsub() as events:
                    await events.psubscribe(*_EVENTS)
                    while self._watching:
                        await self._ask(number)
                        await changed()
                        event = await events.get_message(ignore_subscribe_messages=True, timeout=_EVERY)
                        if event is not None and self._service.encode() in event["data"].split():
                            await self._hear(number, event["channel"])
                            await changed()
            except (RedisError, OSError) as error:
                self._failed(number, error)
            await asyncio.sleep(_EVERY)

    async def _hear(self, number: int, event: bytes) -> None:
        if event == _PROMOTING:
            self._promoting_until = time.monotonic() + _PROMOTION
        else:  # The failover is over. Learn the address first: before that, the former primary could be used again.
            await self._ask(number)
            self._promoting_until = 0.0

    async def _ask(self, number: int) -> None:
        client = self._clients[number]
        try:
            # Ask for the epoch first: an address may be newer than its epoch, but never older.
            facts = await client.execute_command("SENTINEL MASTER", self._service)
            address = await client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self._service)
        # redis-py raises AttributeError if the connection is cut during connecting.
        except (RedisError, OSError, AttributeError) as error:
            self._failed(number, error)
            return
        if address is None:  # the service was removed from the Sentinel between the two commands
            self._failed(number, ResponseError("it names no primary"))
            return
        host, port = address
        self._answers[number] = SentinelAnswer(int(facts.get("config-epoch", 0)), (_text(host), int(port)))
        self._silent_since = None
        if self._silence_told_at is not None and self._watching:
            self._silence_told_at = None
            _log.info("the Sentinels answer again")
        answers = [answer for answer in self._answers.values() if isinstance(answer, SentinelAnswer)]
        if self._newest.learn(answers, time.monotonic()):
            self._promoting_until = 0.0

    def _failed(self, number: int, error: Exception) -> None:
        text = "it does not answer" if isinstance(error, RedisTimeoutError | TimeoutError) else str(error)
        self._answers[number] = text.rstrip(".") or type(error).__name__
        if not self._watching or any(isinstance(answer, SentinelAnswer) for answer in self._answers.values()):
            return
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        is_told = self._silence_told_at is not None and now - self._silence_told_at < _AGAIN
        if now - self._silent_since >= _SILENCE and not is_told:
            self._silence_told_at = now
            host, port = self.primary or ("", 0)
            _log.warning("no Sentinel answers; the primary stays %s:%d (%s)", host, port, self._failures())

    def _failures(self) -> str:
        return "; ".join(
            f"{self._addresses[number].host}:{self._addresses[number].port}: {answer}"
            for number, answer in sorted(self._answers.items())
            if isinstance(answer, str)
        )


class SentinelPool(SentinelConnectionPool):
    """Connections to the primary that the Sentinels name."""

    def __init__(self, service: str, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(service, sentinels, **options)  # type: ignore[no-untyped-call]  # it is redis-py's
        self.sentinels = sentinels

    @property
    def address(self) -> str | None:
        """Host and port of the primary; None until it is known."""
        primary = self.sentinels.primary
        return primary and f"{primary[0]}:{primary[1]}"

    async def leave_others(self) -> None:
        """Cut the connections to all other servers, even connections in use."""
        for connection in [*self._available_connections, *self._in_use_connections]:
            assert isinstance(connection, Connection)
            if connection.is_connected and (connection.host, connection.port) != self.sentinels.primary:
                await connection.disconnect(nowait=True)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
