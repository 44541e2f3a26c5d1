"""The stream on its Redis: its commands, and the reasons for their failure in words without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from redis import asyncio as aioredis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ingestd.api.errors import SinkFailure, SinkRetry
from ingestd.api.events import Record

from ...redis_urls import check_redis_url, unknown_option

__all__ = ["StreamOnRedis"]

_CONNECT_TIMEOUT = 5.0

# Finds ids among the newest entries. A script sends only the indexes back, and has one entry at a time in memory.
_FIND = """
local entries, bytes, wanted, found, before = tonumber(ARGV[1]), tonumber(ARGV[2]), {}, {}, '+'
for i = 3, #ARGV do wanted[ARGV[i]] = i - 3 end
while entries > 0 and bytes > 0 do
    local entry = redis.call('XREVRANGE', KEYS[1], before, '-', 'COUNT', 1)[1]
    if not entry then break end
    before = '(' .. entry[1]
    entries = entries - 1
    for i = 1, #entry[2], 2 do
        bytes = bytes - #entry[2][i + 1]
        local number = entry[2][i] == 'id' and wanted[entry[2][i + 1]]
        if number then found[#found + 1] = number end
        if number == 0 then entries = 0 end
    end
end
return found
"""

_REASONS: dict[type[Exception], str] = {
    exceptions.OutOfMemoryError: "Redis has no memory left (maxmemory)",
    exceptions.ReadOnlyError: "this Redis is a replica and refuses writes",
    exceptions.BusyLoadingError: "Redis is still loading its data",
    exceptions.AuthenticationError: "Redis does not accept the user or password",
}
# Errors of the server, whatever is written: classes of redis-py, and the first words of errors without a class.
_SERVER_ERRORS = (
    exceptions.AuthenticationError, exceptions.BusyLoadingError, exceptions.ClusterDownError,
    exceptions.MasterDownError, exceptions.MaxConnectionsError, exceptions.NoPermissionError,
    exceptions.OutOfMemoryError, exceptions.ReadOnlyError, exceptions.TryAgainError,
)  # fmt: skip
_SERVER_ERROR_CODES = (
    "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOAUTH", "NOPERM", "NOREPLICAS", "OOM", "READONLY",
    "TRYAGAIN", "UNKILLABLE", "WRONGPASS", "WRONGTYPE",
)  # fmt: skip


class StreamOnRedis:
    """Every method raises `SinkRetry`. `add` raises `SinkFailure` unless the error is known to be the server's."""

    def __init__(self, url: str, key: str, *, max_length: int | None) -> None:
        """Does not connect yet. Raises `ValueError` for an unusable URL."""
        self._redis = _client(url)
        self._key = key
        self._max_length = max_length

    async def check(self) -> None:
        """Check, without adding an entry, whether Redis would take one."""
        with self._reasons():
            await self._redis.xlen(self._key)
            try:
                # No entry can have this id. Redis reports every other obstacle before the wrong id.
                await self._redis.xadd(self._key, {"id": ""}, id="0-0")
            except exceptions.ResponseError as error:
                if "must be greater than 0-0" not in str(error):
                    raise

    async def largest(self) -> int | None:
        """The most bytes of one value, None if Redis does not tell."""
        with self._reasons():
            try:
                limits = await self._redis.config_get("proto-max-bulk-len")
            except exceptions.ResponseError:  # an ACL may forbid CONFIG
                limits = {}
        return int(limits.get("proto-max-bulk-len") or 0) or None

    async def find(self, ids: Sequence[str], *, entries: int, size: int) -> set[int]:
        """The indexes of the ids that are in the newest entries: at most `entries` entries and `size` bytes."""
        with self._reasons():
            found: list[int] = await self._redis.eval(_FIND, 1, self._key, entries, size, *ids)
        return set(found)

    async def add(self, records: Sequence[tuple[str, Record]]) -> None:
        """Add all records, each with its id, or none of them."""
        with self._reasons(with_records=True):
            async with self._redis.pipeline(transaction=True) as transaction:
                for identity, record in records:
                    transaction.xadd(
                        self._key,
                        {"id": identity, "type": record.type, "record": record.body},
                        maxlen=self._max_length,
                        approximate=True,
                    )
                # If redis-py raised the error, the message would contain the command, and so a customer's data.
                results = await transaction.execute(raise_on_error=False)
            for result in results:
                if isinstance(result, Exception):
                    raise result

    async def close(self) -> None:
        await self._redis.connection_pool.disconnect()

    @contextmanager
    def _reasons(self, *, with_records: bool = False) -> Iterator[None]:
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            kind = SinkFailure if with_records and not _is_server_error(error) else SinkRetry
            raise kind(self._reason(error)) from error

    def _reason(self, error: Exception) -> str:
        for kind, reason in _REASONS.items():
            if isinstance(error, kind):
                return reason
        text = _text_of(error)
        if "WRONGTYPE" in text:
            return f"the key {self._key} does not hold a stream"
        return f"Redis: {text}" if isinstance(error, exceptions.ResponseError) else text or type(error).__name__


def _is_server_error(error: Exception) -> bool:
    if isinstance(error, exceptions.ResponseError):
        return isinstance(error, _SERVER_ERRORS) or _text_of(error).startswith(_SERVER_ERROR_CODES)
    # redis-py has one class for all errors of connections.
    return isinstance(error, _SERVER_ERRORS) or "connecting to" in str(error)


def _text_of(error: Exception) -> str:
    """The error without the command. redis-py adds the command if Redis refused it before EXEC."""
    return str(error).rpartition(" of pipeline caused error: ")[2].strip("()'\",")


def _client(url: str) -> aioredis.Redis:
    """Make a client, which does not connect yet. Raises `ValueError`."""
    check_redis_url(url)
    try:
        pool = aioredis.ConnectionPool.from_url(
            url,
            socket_connect_timeout=_CONNECT_TIMEOUT,
            socket_timeout=None,  # the sink's writes already have a time limit
            retry=Retry(NoBackoff(), 0),  # redis-py would repeat a command without an answer, and add entries twice
            protocol=2,
            client_name="ingestd",
        )
        pool.make_connection()  # raises for unknown options
    except TypeError as error:  # redis-py passes the options in the URL as arguments
        raise ValueError(f"redis-py does not know its option {unknown_option(error)}") from None
    return aioredis.Redis(connection_pool=pool)
