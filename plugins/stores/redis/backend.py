"""The Redis back end: one Redis as journal and state store, its start, and its background tasks."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from ingestd.api import times
from ingestd.api.backend import Backend, DaemonProcess
from ingestd.api.check_result import CheckResult, show_age
from ingestd.api.errors import ConfigError, Unavailable

from .adoption import Adoption
from .beats import Beats, PartitionBeat
from .contents import RedisContents
from .database import Database
from .durability import Durability, replication, require
from .journal import RedisJournal
from .link import LinkOptions
from .refusals import NEWER, explain
from .server_clock import clock_ahead
from .store import RedisStore
from .work_sharing import DaemonReport, WorkSharing

__all__ = ["RedisBackend", "describe_daemons", "lacking_replicas"]

_log = logging.getLogger("ingestd.redis")

_WRONG_CLOCK = 2000  # milliseconds


class RedisBackend(Backend):
    """`Link` explains `timeout`, `patience` and `promotion_grace`, all in seconds."""

    store: RedisStore
    journal: RedisJournal
    contents: RedisContents
    is_shared = True

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        prefix: str,
        timeout: float,
        patience: float,
        replicas: int = 0,
        promotion_grace: float = 0.0,
        accept_loss: bool = False,
        name: str = "",
        sharing: WorkSharing | None = None,
    ) -> None:
        """`name` and `sharing` are for a partition of a cluster."""
        self.database = Database(pool, LinkOptions(prefix, timeout, patience, replicas, promotion_grace, name))
        self.durability: Durability | None = None
        """None until it is known."""
        self._sharing = sharing
        self.journal = RedisJournal(self.database, sharing)
        self.store = RedisStore(self.database, self.journal)
        self.contents = RedisContents(self.database)
        self._adoption = Adoption(self.database, self.journal, self.store)
        self._accept_loss = accept_loss
        self._tasks: list[asyncio.Task[None]] = []
        self.beat = PartitionBeat(self.database, self.journal, self.store, sharing)

    async def open(self, *, serving: bool, name: str | None = None) -> None:
        """`name` is that of the daemon. All partitions of a store must have the same."""
        try:
            self.durability = await self.database.open(name, serving=serving)
            if self.durability.mode == "cluster" and self._sharing is None:
                raise ConfigError("this Redis is a node of a cluster; write redis+cluster://host:port/")
            await self._adoption.identify(serving=serving)
            await self.journal.last()
        except (RedisError, OSError, TimeoutError, Unavailable) as error:
            await self.close()
            cause = error.__cause__ if isinstance(error, Unavailable) else error
            if cause is None:
                raise
            what = "refuses a request" if isinstance(cause, ResponseError) else "cannot be reached"
            self.database.link.problem = f"Redis {what}: {explain(cause)}"  # until it is opened, the answer to all
            raise _not_opened(cause, f"{self.database.link.problem}.") from cause
        except BaseException:
            await self.close()
            raise
        if serving:
            await self._serve(self.durability)

    async def _serve(self, durability: Durability) -> None:
        try:
            require(durability, accept_loss=self._accept_loss)
        except ConfigError:
            await self.close()
            raise
        if self._sharing is None:
            for warning in self.warnings:
                _log.warning("%s", warning)
        if self.database.sentinels is not None:
            self._run("sentinels", self.database.follow_sentinels())
        if self._sharing is not None:
            self._sharing.name = self.database.name
        else:
            self._run("beats", Beats([self.beat]).run())
        self.beat.begin()
        self._run("follow", self.journal.follow())

    @property
    def warnings(self) -> Sequence[str]:
        """What a start warns of."""
        durability, found = self.durability, []
        assert durability is not None
        if not durability.known:
            found.append(f"Redis does not say whether a restart keeps its data: {durability.text}")
        if (replicated := self._replication(durability)).status != "ok":
            found.append(replicated.text)
        return found

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with suppress(Unavailable):  # if Redis is away, leases and the heartbeat expire
            await self.journal.release_all()
            await self.beat.end()
        await self.database.close()

    def problem(self) -> str | None:
        return self.database.link.problem

    async def describe(self) -> Sequence[CheckResult]:
        found = await self.describe_server()
        lacking = lacking_replicas(found)
        if self.database.sentinels is not None:
            found.append(self.database.sentinels.describe())
        found.append(describe_daemons(await self.running()))
        if (failure := lacking or await self.try_write()) is not None:
            found.append(CheckResult("write", f"a trial write fails: {failure}", "unavailable"))
        else:
            found.append(CheckResult("write", "a trial write is in Redis"))
        return found

    async def describe_server(self) -> list[CheckResult]:
        """Raises `Unavailable`."""
        durability = await self.database.durability()
        facts = durability._asdict()
        found = [
            CheckResult("server", f"Redis {durability.version}, {durability.role}", facts={"version": facts["version"]})
        ]
        try:
            require(durability, accept_loss=self._accept_loss)
        except ConfigError as error:
            found.append(CheckResult("durability", str(error), "broken", facts))
        else:
            found.append(CheckResult("durability", durability.text, "ok" if durability.known else "warning", facts))
        if abs(ahead := await self._clock_ahead()) >= _WRONG_CLOCK:
            where = "behind" if ahead < 0 else "ahead of"
            text = f"Redis' clock is {show_age(abs(ahead))} {where} this machine's. Synchronize both"
            found.append(CheckResult("clock", text, "warning", {"ahead": ahead / 1000}))
        replicated = self._replication(durability)
        if durability.replicas or self.database.options.replicas or replicated.status != "ok":
            found.append(replicated)
        return found

    async def _clock_ahead(self) -> int:
        asked_at = times.now()
        ((seconds, microseconds),) = await self.database.pipeline(("TIME",))
        return clock_ahead(int(seconds) * 1000 + int(microseconds) // 1000, asked_at)

    async def try_write(self) -> str | None:
        """Returns why a trial write fails, or None."""
        try:
            await self.database.link.ask("probe", 0)
        except Unavailable as error:
            return self.database.link.problem or str(error)
        return None

    def _replication(self, durability: Durability) -> CheckResult:
        options, with_sentinels = self.database.options, self.database.sentinels is not None
        return replication(
            durability, waits_for=options.replicas, with_sentinels=with_sentinels, grace=options.promotion_grace
        )

    async def daemons(self) -> Sequence[DaemonProcess]:
        await self.open(serving=False)
        try:
            return await self.running()
        finally:
            await self.close()

    async def running(self) -> list[DaemonProcess]:
        """The daemons of `daemons`, while this is open. Raises `Unavailable`."""
        reports = map(DaemonReport.parse, await self.database.link.ask("daemons", 0))
        return [*dict.fromkeys(DaemonProcess(report.pid, report.host, report.name) for report in reports)]

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"redis: {name}"))


def lacking_replicas(found: Sequence[CheckResult]) -> str | None:
    """Why a trial write to this server would wait in vain for replicas, according to `describe_server`; or None."""
    return next((each.text for each in found if each.name == "replicas" and each.status == "unavailable"), None)


def describe_daemons(running: Sequence[DaemonProcess]) -> CheckResult:
    here = [daemon.pid for daemon in running if daemon.host == socket.gethostname()]
    if not running:
        return CheckResult("daemon", "none is running on it")
    return CheckResult("daemon", f"{len(running)} running on it", facts={"pid": here[0]} if here else {})


def _not_opened(cause: BaseException, otherwise: str) -> ConfigError | Unavailable:
    """The error for a failed start: whether a retry can help depends on the cause."""
    if isinstance(cause, AuthenticationError | NoPermissionError):
        return ConfigError(f"Redis refuses access: {cause}")
    if isinstance(cause, ResponseError) and str(cause).startswith("DB index"):
        return ConfigError(f"Redis has no database with the number in the URL: {cause}")
    if str(cause).startswith(NEWER):
        return ConfigError(otherwise)
    return Unavailable(otherwise)
