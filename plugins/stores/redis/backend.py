"""One Redis as journal and state store: opening, and what goes on beside the events."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from redis import asyncio as aioredis
from redis.asyncio.connection import ConnectionPool
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from ingestd.backend import Backend
from ingestd.errors import ConfigError, Unavailable
from ingestd.findings import Finding
from ingestd.store import State, Store

from .durability import Durability, ask, require
from .journal import RedisJournal
from .link import Link, explain
from .memory import Memory
from .state import RedisState
from .step import StepState

__all__ = ["RedisBackend"]

_log = logging.getLogger("ingestd.redis")

_SCANNED = 1000  # keys of a step
_ALIVE = 10.0  # seconds for which a daemon counts as running after its last word
_PAUSE = 3.0  # seconds between two of them


class RedisBackend(Backend):
    """`timeout` and `patience` are those of the `Link`, in seconds."""

    store: RedisStore
    journal: RedisJournal

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        prefix: str,
        timeout: float,
        patience: float,
        replicas: int = 0,
        accept_loss: bool = False,
    ) -> None:
        self.prefix = prefix
        self.name = uuid4().hex
        """Of this opening: leases are given to it."""
        self.durability: Durability | None = None
        """None before it is known."""
        self.memory = Memory()
        self._pool = pool
        self._client = aioredis.Redis(connection_pool=pool)
        self._timeout = timeout
        self._accept_loss = accept_loss
        self._make_link = partial(
            Link, pool.make_connection, prefix=prefix, timeout=timeout, patience=patience, replicas=replicas
        )
        self.link = self._make_link()
        self.store = RedisStore(self)
        self.journal = RedisJournal(self)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *, serving: bool) -> None:
        self.name = uuid4().hex
        self.link = self._make_link()
        try:
            async with asyncio.timeout(self._timeout):
                # By itself: to what may be asked of it a server may say no, and to this it may not.
                await self._pool.release(await self._pool.get_connection())
                self.durability = await ask(self._client)
            await self.journal.last()
        except (RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise _not_opened(error, f"Redis cannot be reached: {explain(error)}.") from error
        except Unavailable as error:
            await self.close()
            cause = error.__cause__
            if cause is None:
                raise
            raise _not_opened(cause, f"Redis does not do what it is asked: {explain(cause)}.") from cause
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
            _log.warning("Redis does not tell what it keeps through a restart: %s", durability.text)
        self._run("leases", self.journal.keep())
        self._run("follow", self.journal.follow())
        self._run("alive", self._stay_alive())

    async def close(self) -> None:
        serving = bool(self._tasks)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with suppress(Unavailable):  # else they end by themselves
            await self.journal.release_all()
            if serving:
                await self.link.ask("gone", 0, self._word())
        await self.link.close()
        await self._pool.disconnect()

    def problem(self) -> str | None:
        return self.link.problem

    async def describe(self) -> Sequence[Finding]:
        durability = await self._asked(ask(self._client))
        facts = durability._asdict()
        found = [
            Finding("server", f"Redis {durability.version}, {durability.role}", facts={"version": facts["version"]})
        ]
        try:
            require(durability, accept_loss=self._accept_loss)
        except ConfigError as error:
            found.append(Finding("durability", str(error), "broken", facts))
        else:
            found.append(Finding("durability", durability.text, "ok" if durability.known else "warning", facts))
        found.append(await self._daemons())
        try:
            await self.link.ask("probe", 0)
        except Unavailable:
            found.append(Finding("write", f"a trial write fails: {self.link.problem}", "unavailable"))
        else:
            found.append(Finding("write", "a trial write is in Redis"))
        return found

    async def _daemons(self) -> Finding:
        words = [word.split(" ") for word in await self.link.ask("daemons", 0)]
        here = [int(pid) for _, pid, host in words if host == socket.gethostname()]
        if not words:
            return Finding("daemon", "none is running on it")
        return Finding("daemon", f"{len(words)} running on it", facts={"pid": here[0]} if here else {})

    def _word(self) -> str:
        return f"{self.name} {os.getpid()} {socket.gethostname()}"

    async def pipeline(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The answers to some commands that only read. Raises `Unavailable`."""
        if self.link.problem is not None:
            raise Unavailable(f"The store cannot be read at the moment: {self.link.problem}.")

        async def ask_all() -> list[Any]:
            connection = await self._pool.get_connection()
            try:
                await connection.send_packed_command(connection.pack_commands(commands))
                return [await connection.read_response() for _ in commands]
            except BaseException:  # answers may be left on it
                await connection.disconnect(nowait=True)
                raise
            finally:
                await self._pool.release(connection)

        answers: list[Any] = await self._asked(ask_all())
        return answers

    async def block(self, stream: str, after: int, milliseconds: int) -> bool:
        """Wait for an entry of a stream behind that position; whether there is one."""
        found = await self._client.xread({stream: f"{after}-0"}, count=1, block=milliseconds)
        return bool(found)

    async def _asked(self, question: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await question
        except (RedisError, OSError, TimeoutError) as error:
            raise Unavailable(f"The store cannot be read at the moment: {explain(error)}.") from error

    async def _stay_alive(self) -> None:
        """Let commands know that a daemon runs, and where."""
        while True:
            with suppress(Unavailable):  # the link tells of it
                await self.link.ask("alive", 0, self._word(), round(_ALIVE * 1000))
            await asyncio.sleep(_PAUSE)

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=f"redis: {name}"))


class RedisStore(Store):
    distant = True

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend

    def begin(self, now: int, *, step: bool = False) -> State:
        backend = self._backend
        return StepState(backend.link, now) if step else RedisState(backend.link, now, backend.memory)

    async def commit(self, state: State) -> None:
        if isinstance(state, StepState):
            await self._backend.journal.append((), state)

    def discard(self, state: State) -> None:
        if isinstance(state, StepState):
            state.undo()

    async def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        seen: set[bytes] = set()
        position = 0
        match = _literal(f"{self._backend.prefix}{kind}:") + "*"
        while True:
            position, keys = (await self._backend.pipeline(("SCAN", position, "MATCH", match, "COUNT", _SCANNED)))[0]
            new = [key for key in keys if key not in seen]
            seen.update(new)
            (values,) = await self._backend.pipeline(("MGET", *new)) if new else ([],)
            for key, value in zip(new, values, strict=True):
                if value is not None:
                    yield key.decode()[len(self._backend.prefix) :], value.decode().partition("|")[2]
            if int(position) == 0:
                return


def _not_opened(cause: BaseException, otherwise: str) -> ConfigError | Unavailable:
    """What opening raises: whether it may pass by itself depends on the cause."""
    if isinstance(cause, AuthenticationError | NoPermissionError):
        return ConfigError(f"Redis does not let us in: {cause}")
    if isinstance(cause, ResponseError) and str(cause).startswith("DB index"):
        return ConfigError(f"Redis has no database of the number in the URL: {cause}")
    return Unavailable(otherwise)


def _literal(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in text)
