"""The Redis back end: one Redis as journal and state store, its start, and its background tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from ingestd.api.backend import Backend, DaemonProcess
from ingestd.api.check_result import CheckResult
from ingestd.api.errors import ConfigError, Unavailable

from .adoption import Adoption
from .contents import RedisContents
from .database import Database
from .durability import Durability, replication, require
from .journal import RedisJournal
from .link import LinkOptions, explain
from .store import RedisStore

__all__ = ["RedisBackend"]

_log = logging.getLogger("ingestd.redis")

_ALIVE = 10.0  # seconds after its last heartbeat for which a daemon counts as running
_PAUSE = 3.0  # seconds between two heartbeats
_PAUSES_UNUSED = 200  # heartbeats between two looks for unused entries: they stay for ten to twenty minutes


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
    ) -> None:
        self.database = Database(pool, LinkOptions(prefix, timeout, patience, replicas, promotion_grace))
        self._replicas = replicas
        self.durability: Durability | None = None
        """None until it is known."""
        self.journal = RedisJournal(self.database)
        self.store = RedisStore(self.database, self.journal)
        self.contents = RedisContents(self.database)
        self._adoption = Adoption(self.database, self.journal, self.store)
        self._accept_loss = accept_loss
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *, serving: bool) -> None:
        try:
            self.durability = await self.database.open()
            await self._adoption.identify(serving=serving)
            await self.journal.last()
        except (RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise _not_opened(error, f"Redis cannot be reached: {explain(error)}.") from error
        except Unavailable as error:
            await self.close()
            cause = error.__cause__
            if cause is None:
                raise
            raise _not_opened(cause, f"Redis refuses a request: {explain(cause)}.") from cause
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
        if not durability.known:
            _log.warning("Redis does not say whether a restart keeps its data: %s", durability.text)
        if (replicated := self._replication(durability)).status != "ok":
            _log.warning("%s", replicated.text)
        if self.database.sentinels is not None:
            self._run("sentinels", self.database.follow_sentinels())
        self._run("leases", self.journal.keep())
        self._run("follow", self.journal.follow())
        self._run("alive", self._stay_alive())

    async def close(self) -> None:
        serving = bool(self._tasks)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with suppress(Unavailable):  # if Redis is away, leases and the heartbeat expire
            await self.journal.release_all()
            if serving:
                await self.database.link.ask("gone", 0, self._word())
        await self.database.close()

    def problem(self) -> str | None:
        return self.database.link.problem

    async def describe(self) -> Sequence[CheckResult]:
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
        replicated = self._replication(durability)
        if durability.replicas or self._replicas or replicated.status != "ok":
            found.append(replicated)
        if self.database.sentinels is not None:
            found.append(self.database.sentinels.describe())
        found.append(await self._daemons())
        try:
            await self.database.link.ask("probe", 0)
        except Unavailable:
            found.append(CheckResult("write", f"a trial write fails: {self.database.link.problem}", "unavailable"))
        else:
            found.append(CheckResult("write", "a trial write is in Redis"))
        return found

    def _replication(self, durability: Durability) -> CheckResult:
        with_sentinels = self.database.sentinels is not None
        return replication(durability, waits_for=self._replicas, with_sentinels=with_sentinels)

    async def _daemons(self) -> CheckResult:
        running = await self._running()
        here = [daemon.pid for daemon in running if daemon.host == socket.gethostname()]
        if not running:
            return CheckResult("daemon", "none is running on it")
        return CheckResult("daemon", f"{len(running)} running on it", facts={"pid": here[0]} if here else {})

    async def daemons(self) -> Sequence[DaemonProcess]:
        await self.open(serving=False)
        try:
            return await self._running()
        finally:
            await self.close()

    async def _running(self) -> list[DaemonProcess]:
        words = [word.split(" ") for word in await self.database.link.ask("daemons", 0)]
        return [DaemonProcess(int(pid), host, name) for name, pid, host in words]

    def _word(self) -> str:
        return f"{self.database.name} {os.getpid()} {socket.gethostname()}"

    async def _stay_alive(self) -> None:
        """Report regularly that this daemon runs, and where, so that commands find it.

        Forget unused entries too: `ingestd forget` cannot reach them in the caches of other processes.
        """
        for pause in count():
            if pause % _PAUSES_UNUSED == 0:
                self.database.entries.forget_unused()
            with suppress(Unavailable):  # the link reports it
                self.database.link.begin(["alive", 0, self._word(), round(_ALIVE * 1000)], self._heard)
            await asyncio.sleep(_PAUSE)

    def _heard(self, answer: Any, error: Exception | None) -> None:
        if error is None:
            link = self.database.link
            link.last, link.heartbeats = answer

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"redis: {name}"))


def _not_opened(cause: BaseException, otherwise: str) -> ConfigError | Unavailable:
    """The error for a failed start: whether a retry can help depends on the cause."""
    if isinstance(cause, AuthenticationError | NoPermissionError):
        return ConfigError(f"Redis refuses access: {cause}")
    if isinstance(cause, ResponseError) and str(cause).startswith("DB index"):
        return ConfigError(f"Redis has no database with the number in the URL: {cause}")
    return Unavailable(otherwise)
