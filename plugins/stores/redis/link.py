"""The link to Redis: operations of one loop turn are sent together, as one script call or a few."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from hashlib import sha1
from itertools import count as counting
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from ingestd.api.backend import describe_partition
from ingestd.api.errors import Unavailable

from .operations import READS, Asked, Operation, Then, encode, settle, tell, tell_both
from .refusals import LOST, NoReplicas, explain, is_final, refusal, unavailable
from .scripts import BATCH, decode_answers
from .server_clock import monotonic
from .servers import PAUSE, address_of, cut, lateness, prepare_to_cut

__all__ = ["Link", "LinkOptions"]

_log = logging.getLogger("ingestd.redis")

_SHA = sha1(BATCH, usedforsecurity=False).hexdigest()  # Redis' name for the script
# Of records in a piece of the journal. A move stops both nodes for 7 ms a piece, and redis-cli moves ten keys at once.
PIECE_BYTES = 512 << 10
_MANY = 500  # operations or records of one batch: while Redis runs it, others wait
_SOME = 12  # operations that are sent before the turn ends, so that Redis works meanwhile
_IN_FLIGHT = 4  # batches without an answer
_PROBE = 0.5  # seconds
_SLOWEST = 2_000_000  # bytes a second that a line to Redis takes; what is in flight gets so much more time
_REPEATED = 300.0  # seconds in which a batch may be sent again: half of REMEMBERED in batch.lua
_GRACE_WAIT = 10  # milliseconds for which an answer waits for replicas while a new primary may have none

_encode = msgspec.msgpack.Encoder().encode


class _Batch(NamedTuple):
    name: bytes
    """The id of the batch. Redis keeps the answers under it."""
    asked: bytes
    thens: Sequence[Then]
    made_at: int
    waits: bool
    """Whether the answer waits for replicas."""


class LinkOptions(NamedTuple):
    """The options of a `Link`, which explains them. Times are in seconds."""

    prefix: str
    timeout: float
    patience: float
    replicas: int = 0
    promotion_grace: float = 0.0
    name: str = ""
    """The name of the partition, for the log; empty if there is only one."""


class Link:
    """Sends operations in batches on one connection. The next batch gathers while others wait for their answers.

    A batch without an answer within `timeout`, and longer if megabytes are on their way, is sent again on a new
    connection, for `patience` in all. The script never repeats the writes of a batch. After that the link refuses all
    operations until a probe succeeds. Times are in seconds.

    The answer to a batch with writes waits for `replicas`. During `promotion_grace` after a failover it does not: the
    primary may have none.

    Each batch names its store, and any other store refuses it. So no transaction is split between a lost store and its
    replacement. After such a refusal the link refuses all operations, until the replacement has been adopted.
    """

    tenants: int | None = None
    """As `Store.tenants`, for the log."""
    _transport: asyncio.WriteTransport | None = None

    def __init__(
        self, make_connection: Callable[[], AbstractConnection], options: LinkOptions, *, serving: bool = False
    ) -> None:
        """Without `serving`, errors are for an operator at a command, and have the reason."""
        self.problem: str | None = None
        """Why nothing can be stored; None if all is well."""
        self.told: str | None = None
        """The problem in the last log line; None once events can be stored."""
        self.connected_at = 0.0
        """Time of the last connect, by time.monotonic()."""
        self.address: str | None = None
        """Host and port of the last server; None for a Unix socket."""
        self.failovers = 0
        """How often a connect reached another server than the one before."""
        self.batches = 0
        self.operations = 0
        self.store_id = ""
        """The id of the store; empty while unknown."""
        self.last = 0
        """The newest journal position in the answers to this process' appends."""
        self.is_replicated = False
        """Whether enough replicas have the batch whose answers are being given, and so all writes before it."""
        self.placement = 0
        """The version of the placement of tenants that this process uses."""
        self.heartbeats = 0
        """The newest heartbeat count in the answers to this process' heartbeats."""
        self.adoption: Callable[[], tuple[Operation, Then]] | None = None
        """Makes the operation that adopts a replacement of a lost store. None: this process adopts none."""
        self._lacks_replicas = False
        """Whether `problem` is that too few replicas have the writes."""
        self._lost = False
        """Whether the store has lost data and is not adopted yet."""
        self._serving = serving
        self._make_connection = make_connection
        self._prefix = options.prefix.encode()
        self._name = options.name
        self._timeout = options.timeout
        self._patience = options.patience
        self._replicas = options.replicas
        self._promotion_grace = options.promotion_grace
        self._piece = str(PIECE_BYTES)
        self._grace_until = 0.0
        self._left: str | None = None
        """The server before a failover, until the new server has answered."""
        self._refused_since = 0.0
        self._connection: AbstractConnection | None = None
        self._batch_ids = map(f"{uuid4().hex}-{{:x}}".format, counting())
        self._waiting: list[Asked] = []
        self._in_flight: deque[_Batch] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, *operation: Any, weight: int = 1, first: Then | None = None) -> Any:
        """The answer to one operation. Raises `Unavailable`, or `Failed` if it can never be stored.

        Operations of one turn leave together and in order, except for those that `push` sends earlier. `first` is
        called before the callbacks of later operations; the caller goes on after them.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        then = partial(settle, future)
        self.begin([*operation], then if first is None else partial(tell_both, first, then), weight)
        return await future

    def begin(self, operation: Operation, then: Then, weight: int = 1) -> None:
        """As `ask`, with a callback. A future costs more, and its waiters run a turn of the loop later.

        `weight` is the number of events or entries. `then` can run in the context of another request. After an error of
        this method nothing is sent or called.
        """
        if self.problem is not None and not (self.can_read and operation[0] in READS):
            raise self.unavailable()
        self._begin(operation, then, weight)

    def _begin(self, operation: Operation, then: Then, weight: int = 1) -> None:
        if self._closed:
            raise Unavailable("The store is closed.")
        self._waiting.append(Asked(encode(operation), then, weight, operation[0] not in READS))
        self._go()

    def _go(self) -> None:
        if self._sending is None and self._waiting and len(self._in_flight) < _IN_FLIGHT:
            # Without a context: a batch does not belong to the request that began it.
            self._sending = asyncio.get_running_loop().create_task(self._send(), context=Context())

    async def close(self) -> None:
        """Refuse new operations, and wait until all earlier ones have their answers."""
        self._closed = True
        while tasks := [task for task in (self._sending, self._reading) if task is not None]:
            await asyncio.wait(tasks)
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        await self.leave()

    async def _send(self) -> None:
        try:
            await asyncio.sleep(0)  # the rest of this turn comes along
            while self._waiting and len(self._in_flight) < _IN_FLIGHT:
                await self._send_next()
        finally:
            self._sending = None

    @property
    def is_pressed(self) -> bool:
        """Whether enough is queued to send it before the turn ends. A turn with many events is long."""
        return len(self._waiting) >= _SOME and len(self._in_flight) < _IN_FLIGHT

    async def push(self) -> None:
        """Send queued operations as long as there are enough."""
        while self.is_pressed:
            await self._send_next()

    async def _send_next(self) -> None:
        batch = self._make_batch()
        self._in_flight.append(batch)
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(), context=Context())
        connection = self._connection
        is_sent = connection is None  # then the reader connects, and sends all batches in flight
        try:
            if connection is not None:
                await self._send_batch(connection, batch)  # the reader leaves a server that takes no data
            is_sent = True
        except (RedisError, OSError) as error:
            _log.debug("sending: %s", error)
        finally:  # `push` runs in the task of an event: if that is cancelled, redis-py has closed the connection
            if not is_sent and self._connection is connection:
                await self.leave()  # the reader notices it

    def _make_batch(self) -> _Batch:
        weight = count = 0
        for asked in self._waiting:
            weight += asked.weight
            if count and weight > _MANY:
                break
            count += 1
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        operations = _encode([asked.operation for asked in some])
        waits = self._replicas > 0 and any(asked.writes for asked in some)
        return _Batch(next(self._batch_ids).encode(), operations, [asked.then for asked in some], monotonic(), waits)

    async def _read(self) -> None:
        """Read answers until no batch is in flight."""
        stood_still = 0.0  # seconds in which this process stood still, so that they are not of the patience
        try:
            while self._in_flight:
                began, limit = monotonic(), self._limit()
                try:
                    async with asyncio.timeout(limit):
                        if self._connection is None:
                            await self._connect()
                        answers = await self._read_answers(self._connection, self._in_flight[0])
                except (RedisError, OSError, TimeoutError) as error:
                    await self.leave()
                    age = _age(self._in_flight[0])
                    stood_still += lateness(began, limit)
                    is_over = age - stood_still + PAUSE >= self._patience
                    if is_over or age >= _REPEATED or is_final(error):
                        self._give_up(error)
                    else:
                        await asyncio.sleep(PAUSE)
                else:
                    stood_still = 0.0
                    batch = self._in_flight.popleft()
                    if batch.waits or not self._replicas:  # reading alone does not tell whether events can be stored
                        self._mended()
                    self._go()
                    self._settle(batch, answers)
        finally:
            self._reading = None
            if self._in_flight:  # sent while this task ended
                self._reading = asyncio.get_running_loop().create_task(self._read(), context=Context())

    def _limit(self) -> float:
        """The seconds of an attempt. All that is in flight may have to be sent first, over a slow line."""
        size = sum(len(batch.asked) for batch in self._in_flight)
        return self._timeout + min(size / _SLOWEST, self._patience / 2)

    async def _connect(self) -> None:
        """Connect, and send again all batches without an answer."""
        connection, self._transport = self._make_connection(), None
        try:
            await connection.connect()
            self._transport = prepare_to_cut(connection)
            self._note_server(address_of(connection))
            await connection.send_command("SCRIPT", "LOAD", BATCH)
            await connection.read_response()
            sent = 0
            while sent < len(self._in_flight):  # more may come meanwhile
                if _age(self._in_flight[sent]) >= _REPEATED:
                    raise TimeoutError  # Redis may have forgotten that it has done it, and would do it twice
                await self._send_batch(connection, self._in_flight[sent], is_first=not sent)
                sent += 1
        except BaseException:
            await cut(connection, self._transport)
            raise
        self._connection = connection
        self.connected_at = time.monotonic()

    def _note_server(self, address: str | None) -> None:
        if self.address not in (None, address):
            self.failovers += 1
            self._left = self._left or self.address
            self._grace_until = time.monotonic() + self._promotion_grace
        self.address = address

    @property
    def label(self) -> str:
        """The partition and its tenants, at the beginning of a line; empty on a single Redis."""
        return f"{describe_partition(self._name, self.tenants)}: " if self._name else ""

    @property
    def may_share(self) -> bool:
        """Whether `pack` may be used: this link reaches its server, and its answers wait for replicas as usual."""
        return self.problem is None and self._connection is not None and not self._grace_until and not self._closed

    def pack(self, connection: AbstractConnection, operation: Operation) -> list[bytes]:
        """A batch of one operation for a connection that several links share. It may be done twice or never."""
        return self._pack(connection, next(self._batch_ids).encode(), _encode([operation]))

    def unpack(self, answer: bytes) -> Any:
        """The answer to a batch of `pack`, once enough replicas have it. Raises `ResponseError`."""
        ((works, result),) = decode_answers(answer)
        if not works:
            raise ResponseError(result)
        self.batches, self.operations, self.is_replicated = self.batches + 1, self.operations + 1, True
        return result

    def _pack(
        self, connection: AbstractConnection, name: bytes, asked: bytes, *, is_first: bool = False
    ) -> list[bytes]:
        """`is_first` is the first batch of a connection. Its store must have all its parts, or it refuses the batch."""
        known = f"{self.store_id} {self.last} {self.heartbeats}"
        packed: list[bytes] = connection.pack_command(
            "EVALSHA", _SHA, 1, self._prefix, name, asked, known, self._piece, int(is_first)
        )
        return packed

    async def _send_batch(self, connection: AbstractConnection, batch: _Batch, *, is_first: bool = False) -> None:
        packed = self._pack(connection, batch.name, batch.asked, is_first=is_first)
        if batch.waits:
            # WAIT covers all writes of this connection, and with them all earlier writes.
            wait = _GRACE_WAIT if self._grace_until else round(self._timeout * 500)
            packed += connection.pack_command("WAIT", self._replicas, wait)
        await connection.send_packed_command(packed, check_health=False)

    async def _read_answers(self, connection: AbstractConnection | None, batch: _Batch) -> list[tuple[bool, Any]]:
        assert connection is not None
        answer = await connection.read_response()
        self.is_replicated = not self._replicas
        if batch.waits:
            reached = await connection.read_response()
            self.is_replicated = reached >= self._replicas
            if self.is_replicated:
                self._grace_until = 0.0
            elif time.monotonic() >= self._grace_until:
                self._grace_until = 0.0
                raise NoReplicas(
                    f"NOREPLICAS {reached} of {self._replicas} replicas have it (wait_replicas);"
                    " sinks and attribution wait for them too"
                )
        return decode_answers(answer)

    def _settle(self, batch: _Batch, answers: list[tuple[bool, Any]]) -> None:
        self.batches += 1
        self.operations += len(batch.thens)
        for then, (works, result) in zip(batch.thens, answers, strict=True):
            if works:
                tell(then, result, None)
            else:
                refused = refusal(result)
                tell(then, None, refused if self._serving else Unavailable(f"The store refuses this: {result}."))

    def _give_up(self, cause: Exception) -> None:
        """Refuse all sent operations, and the waiting ones, which have waited nearly as long."""
        reason = explain(cause)
        is_lost = str(cause).startswith(LOST)
        if is_lost and self.adoption is not None:
            self._lost = True
            self.store_id = ""  # the adoption would be refused with the old id
        refused = [then for batch in self._in_flight for then in batch.thens]
        refused += [asked.then for asked in self._waiting]
        self._in_flight.clear()
        self._waiting = []
        if self.problem is None:
            self._refused_since = time.monotonic()
        if self.problem is None and not is_lost and reason != self.told:  # the adoption reports the loss
            _log.warning("%sevents cannot be stored: %s", self.label, reason)
            self.told = reason
        self.problem = reason
        self._lacks_replicas = isinstance(cause, NoReplicas)
        error = self.unavailable()
        error.__cause__ = cause
        if self._probing is None and not self._closed:
            self._probing = asyncio.get_running_loop().create_task(self._probe(), context=Context())
        for then in refused:
            tell(then, None, error)

    def unavailable(self) -> Unavailable:
        """The error for an operation that is refused: for a caller, or for an operator at a command."""
        problem = self.problem or "it has lost data"
        if self._serving:
            return unavailable(problem)
        return Unavailable(f"The store cannot be used now: {problem}.")

    @property
    def can_read(self) -> bool:
        """Whether the store can be read. Without replicas a command reads on. A consumer would deliver again and again,
        since its cursor cannot move.
        """
        return self.problem is None or (self._lacks_replicas and not self._serving)

    @property
    def limits_consumers(self) -> bool:
        """Whether consumers read only what enough replicas have. Commands read all that the primary has."""
        return self._serving and self._replicas > 0

    async def leave(self) -> None:
        """Cut the connection. Batches without an answer are sent again on a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await cut(connection, self._transport)

    def go_on(self, store_id: str, last: int, heartbeats: int) -> None:
        """Use this store from now on."""
        self.store_id, self.last, self.heartbeats = store_id, last, heartbeats
        self._lost = False
        self._mended()

    def _mended(self) -> None:
        if self._lost:
            return
        if self._left is not None:
            self._tell_failover(self._left)
            self._left = None
        if self.problem is not None:
            _log.info("%sevents can be stored again", self.label)
        self.problem = self.told = None

    def _tell_failover(self, left: str) -> None:
        refused = "no event was"
        if self.problem is not None:
            refused = f"for {time.monotonic() - self._refused_since:.1f} s events were"
        alone = ""
        if self._replicas and self._grace_until:
            alone = (
                f"; until replicas follow it, for at most {self._promotion_grace:g} s, a 200 does not wait for them,"
                " but sinks and attribution do"
            )
        _log.warning(
            "%sthe primary is %s, no longer %s: %s answered 503%s", self.label, self.address, left, refused, alone
        )

    async def _probe(self) -> None:
        """Try to write while nothing can be stored, so that recovery is noticed even without new events."""
        adopting = False
        try:
            while self.problem is not None:
                if adopting or not self._lost:
                    await asyncio.sleep(_PROBE)
                answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                then = partial(settle, answered)
                adopting = self._lost
                try:
                    if adopting and self.adoption is not None:
                        operation, adopted = self.adoption()
                        self._begin(operation, partial(tell_both, adopted, then))
                    else:
                        self._begin(["probe", 0], then)
                    await answered
                except Unavailable:
                    _log.debug("still failing: %s", self.problem)
        finally:
            self._probing = None


def _age(batch: _Batch) -> float:
    return (monotonic() - batch.made_at) / 1000
