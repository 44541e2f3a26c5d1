"""The link to Redis: operations of one loop turn are sent together, as one script call or a few."""

from __future__ import annotations

import asyncio
import logging
import re
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
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ingestd.api.backend import describe_partition
from ingestd.api.errors import Failed, Unavailable

from .scripts import BATCH, decode_answers
from .server_clock import monotonic
from .servers import PAUSE, address_of, cut, lateness, prepare_to_cut

__all__ = ["LOST", "NEWER", "Link", "LinkOptions", "Operation", "Then", "encode", "explain", "raw", "refusal"]

_log = logging.getLogger("ingestd.redis")

Operation = list[Any]
"""The name and arguments of an operation in batch.lua."""

Then = Callable[[Any, Exception | None], None]
"""Called once, with the answer to an operation or with the error. It must not raise."""

_SHA = sha1(BATCH, usedforsecurity=False).hexdigest()  # Redis' name for the script
_READS = frozenset(name.decode() for name in re.findall(rb"^reads\.(\w+) =", BATCH, re.MULTILINE))
# Of records in a piece of the journal. A move stops both nodes for 7 ms a piece, and redis-cli moves ten keys at once.
PIECE_BYTES = 512 << 10
_MANY = 500  # operations or records of one batch: while Redis runs it, others wait
_SOME = 12  # operations that are sent before the turn ends, so that Redis works meanwhile
_IN_FLIGHT = 4  # batches without an answer
_PROBE = 0.5  # seconds
_REPEATED = 300.0  # seconds in which a batch may be sent again: half of REMEMBERED in batch.lua
_GRACE_WAIT = 10  # milliseconds for which an answer waits for replicas while a new primary may have none

_encoder = msgspec.msgpack.Encoder()


class _NoReplicas(ResponseError):
    """Too few replicas have the write."""


# Errors of a server that takes no writes now; another server may take them. A server that loads its data is handled
# like an unreachable one.
_MOVING = (AskError, TryAgainError)  # the slot is being moved; a batch needs all keys of a slot, so it waits
_ELSEWHERE = (ReadOnlyError, MasterDownError, _NoReplicas, MovedError, ClusterDownError, *_MOVING)
_TURNED = ("UNBLOCKED", "WAIT cannot be used with replica")  # the server became a replica during WAIT, or before it
LOST = "STORELOST"  # the store is not the one that this process knows, or an older state of it
NEWER = "STOREFORMAT"  # a newer version of ingestd has written the store


class _Asked(NamedTuple):
    operation: msgspec.Raw
    then: Then
    weight: int
    writes: bool


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

    A batch without an answer within `timeout` is sent again on a new connection, for `patience` in all. The script
    never repeats the writes of a batch. After that the link refuses all operations until a probe succeeds. Times are in
    seconds.

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
        self._waiting: list[_Asked] = []
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
        settle = partial(_settle_future, future)
        self.begin([*operation], settle if first is None else partial(_tell_both, first, settle), weight)
        return await future

    def begin(self, operation: Operation, then: Then, weight: int = 1) -> None:
        """As `ask`, with a callback. A future costs more, and its waiters run a turn of the loop later.

        `weight` is the number of events or entries. `then` can run in the context of another request. After an error of
        this method nothing is sent or called.
        """
        if self.problem is not None and not (self.can_read and operation[0] in _READS):
            raise self.unavailable()
        self._begin(operation, then, weight)

    def _begin(self, operation: Operation, then: Then, weight: int = 1) -> None:
        if self._closed:
            raise Unavailable("The store is closed.")
        self._waiting.append(_Asked(encode(operation), then, weight, operation[0] not in _READS))
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
        connection = self._connection
        if connection is not None:  # otherwise the reader connects, and sends all batches in flight
            try:
                async with asyncio.timeout(self._patience):  # a dead server takes no data; a slow line takes its time
                    await self._send_batch(connection, batch)
            except (RedisError, OSError, TimeoutError) as error:
                _log.debug("sending: %s", error)
                if self._connection is connection:
                    await self.leave()  # the reader notices it
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(), context=Context())

    def _make_batch(self) -> _Batch:
        weight = count = 0
        for asked in self._waiting:
            weight += asked.weight
            if count and weight > _MANY:
                break
            count += 1
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        operations = _encoder.encode([asked.operation for asked in some])
        waits = self._replicas > 0 and any(asked.writes for asked in some)
        return _Batch(next(self._batch_ids).encode(), operations, [asked.then for asked in some], monotonic(), waits)

    async def _read(self) -> None:
        """Read answers until no batch is in flight."""
        stood_still = 0.0  # seconds in which this process stood still, so that they are not of the patience
        try:
            while self._in_flight:
                began = monotonic()
                try:
                    async with asyncio.timeout(self._timeout):
                        if self._connection is None:
                            await self._connect()
                        answers = await self._read_answers(self._connection, self._in_flight[0])
                except (RedisError, OSError, TimeoutError) as error:
                    await self.leave()
                    age = _age(self._in_flight[0])
                    stood_still += lateness(began, self._timeout)
                    is_over = age - stood_still + PAUSE >= self._patience
                    if is_over or age >= _REPEATED or _is_final(error):
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
        return self._pack(connection, next(self._batch_ids).encode(), _encoder.encode([operation]))

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
                raise _NoReplicas(
                    f"NOREPLICAS {reached} of {self._replicas} replicas have it (wait_replicas);"
                    " sinks and attribution wait for them too"
                )
        return decode_answers(answer)

    def _settle(self, batch: _Batch, answers: list[tuple[bool, Any]]) -> None:
        self.batches += 1
        self.operations += len(batch.thens)
        for then, (works, result) in zip(batch.thens, answers, strict=True):
            if works:
                _tell(then, result, None)
            else:
                refused = refusal(result)
                _tell(then, None, refused if self._serving else Unavailable(f"The store refuses this: {result}."))

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
        self._lacks_replicas = isinstance(cause, _NoReplicas)
        error = self.unavailable()
        error.__cause__ = cause
        if self._probing is None and not self._closed:
            self._probing = asyncio.get_running_loop().create_task(self._probe(), context=Context())
        for then in refused:
            _tell(then, None, error)

    def unavailable(self) -> Unavailable:
        """The error for an operation that is refused: for a caller, or for an operator at a command."""
        problem = self.problem or "it has lost data"
        if self._serving:
            return _unavailable(problem)
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
                tell = partial(_settle_future, answered)
                adopting = self._lost
                try:
                    if adopting and self.adoption is not None:
                        operation, adopted = self.adoption()
                        self._begin(operation, partial(_tell_both, adopted, tell))
                    else:
                        self._begin(["probe", 0], tell)
                    await answered
                except Unavailable:
                    _log.debug("still failing: %s", self.problem)
        finally:
            self._probing = None


def _unavailable(problem: str) -> Unavailable:
    # The answer has no reason: it names servers, which a browser must not see.
    return Unavailable(
        "Events cannot be stored at the moment. Send the request again.",
        reason=f"the store cannot be used now: {problem}",
    )


def refusal(message: str) -> Unavailable:
    """The error for an operation that Redis could not do. Logs the reason."""
    _log.error("an operation failed: %s", message)
    return _unavailable(message)


def encode(asked: Any) -> msgspec.Raw:
    """An operation, or a part of one. Raises `Failed` if Redis can never store it."""
    try:
        return msgspec.Raw(_encoder.encode(asked))
    except (UnicodeEncodeError, OverflowError) as error:
        _log.error("one event could not be stored because of its content: %r", error)
        raise Failed("The event could not be stored.") from error


def raw(text: bytes) -> msgspec.Raw:
    """UTF-8 as a MessagePack string, without decoding it. Redis does not know MessagePack's binary type."""
    return msgspec.Raw(b"\xdb" + len(text).to_bytes(4, "big") + text)


def _tell(then: Then, answer: Any, error: Exception | None) -> None:
    try:
        then(answer, error)
    except Exception:  # noqa: BLE001 - the other callers must get their answers too
        _log.exception("a callback of an answer failed")


def _tell_both(first: Then, second: Then, answer: Any, error: Exception | None) -> None:
    _tell(first, answer, error)
    _tell(second, answer, error)


def _settle_future(future: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
        future.exception()  # the caller may be cancelled


def explain(error: BaseException) -> str:
    """Why Redis did not do an operation, in a few words for an operator."""
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return "Redis does not answer"
    if isinstance(error, _MOVING):
        return "its slot is being moved to another node"
    if isinstance(error, MovedError):
        return "its slot has moved to another node"
    return str(error).removeprefix(f"{LOST} ").removeprefix(f"{NEWER} ").rstrip(".") or type(error).__name__


def _age(batch: _Batch) -> float:
    return (monotonic() - batch.made_at) / 1000


def _is_final(error: BaseException) -> bool:
    """Whether a retry on the same server fails too."""
    if isinstance(error, NoScriptError):  # the scripts were flushed; the next connection loads it again
        return False
    if isinstance(error, _ELSEWHERE) or str(error).startswith(_TURNED):
        return False
    return isinstance(error, AuthenticationError | ResponseError)
