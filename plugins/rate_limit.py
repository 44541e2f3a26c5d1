"""Limits on the rate of events, for each key and each client address. Off unless a rate is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Annotated, NamedTuple, NoReturn

from msgspec import Meta

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, Limited
from ingestd.api.events import Principal, Request
from ingestd.api.hookspecs import Daemon
from ingestd.api.options import Options as BaseOptions
from ingestd.support.addresses import network_of

from .token_buckets import Rate, TokenBuckets

__all__ = ["RateLimitPlugin"]

_FAILURE = 10
"""Tokens that an address loses for a request without a known sender: an invalid key or a wrong signature."""

_Burst = Annotated[int, Meta(ge=1, le=10**9)]
_Whose = Callable[[Request, Principal | None], Hashable]


class _Limit(NamedTuple):
    by: str
    rate: Rate
    burst: int
    buckets: TokenBuckets
    whose: _Whose
    """The name of the bucket that a request takes tokens from, or None."""


class RateLimitPlugin:
    class Options(BaseOptions):
        per_key: Rate | None = None
        per_key_burst: _Burst | None = None
        per_address: Rate | None = None
        per_address_burst: _Burst | None = None

    def __init__(self, options: Options, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._limits = [
            *_limit("key", options.per_key, options.per_key_burst, _key),
            *_limit("address", options.per_address, options.per_address_burst, _address),
        ]
        self._count: Mapping[str, Callable[[], None]] = dict.fromkeys(("key", "address"), lambda: None)

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        from prometheus_client import Counter  # here, so that commands, which count nothing, start sooner

        refused = Counter(
            "ingestd_rate_limit_refused", "Requests refused for their rate.", ["by"], registry=daemon.registry
        )
        self._count = {by: refused.labels(by).inc for by in self._count}

    @hookimpl
    def take_over(self, predecessor: RateLimitPlugin) -> None:
        self._count = predecessor._count
        # An unchanged limit keeps its buckets, so callers over it stay over it.
        same = {limit[:3]: limit for limit in predecessor._limits}
        self._limits = [same.get(limit[:3], limit) for limit in self._limits]

    @hookimpl
    def screen(self, request: Request) -> None:
        """Refuse an address over its rate before the daemon looks at the request. This takes no token."""
        for limit in self._limits:
            name = _address(request) if limit.by == "address" else None
            wait = 0 if name is None else limit.buckets.wait(name, self._clock())
            if wait > 0:
                self._refuse(limit, wait)

    @hookimpl
    def admit(self, request: Request, principal: Principal | None) -> None:
        """Take a token for each event from each of the request's buckets, or none if one bucket has too few.

        An unknown sender takes ten tokens of its address, which may then owe some of them.
        """
        if not self._limits:
            return
        count = request.events if principal is not None else _FAILURE
        now, wait, exceeded, buckets = self._clock(), 0, None, []
        for limit in self._limits:
            name = limit.whose(request, principal)
            if name is not None:
                buckets.append((limit.buckets, name))
                needed = limit.buckets.wait(name, now, request.events)
                if needed > wait:
                    wait, exceeded = needed, limit
        if exceeded is not None:
            self._refuse(exceeded, wait)
        for bucket, name in buckets:
            bucket.take(name, now, count)

    def _refuse(self, limit: _Limit, wait: int) -> NoReturn:
        self._count[limit.by]()
        seconds = -(-wait // 10**9)
        raise Limited(
            f"This {limit.by} is over its rate of {limit.rate}. Send the request again after {seconds} s.",
            retry_after=seconds,
        )


def _limit(by: str, rate: Rate | None, burst: int | None, whose: _Whose) -> list[_Limit]:
    if rate is not None:
        burst = burst or rate.number
        return [_Limit(by, rate, burst, TokenBuckets(rate, burst), whose)]
    if burst is not None:
        raise ConfigError(f"plugins.rate_limit.per_{by}_burst: has no meaning without per_{by}")
    return []


def _key(request: Request, principal: Principal | None) -> Hashable:
    # Only valid keys have a bucket. Invented ones would fill the table.
    return None if principal is None else (principal.tenant, principal.key_id)


def _address(request: Request, principal: Principal | None = None) -> Hashable:
    return network_of(request.peer) or None
