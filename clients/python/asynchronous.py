"""The client for asyncio. Threads write to the disk and send, so the event loop never waits."""

from __future__ import annotations

import asyncio
from typing import Any

from .client import Client

__all__ = ["AsyncClient"]


class AsyncClient:
    """Has the options, methods and errors of `Client`. Its methods are coroutines."""

    def __init__(self, host: str, key: str, secret: str, tenant: str, **options: Any) -> None:
        self._client = Client(host, key, secret, tenant, **options)

    async def track(self, key: str, data: dict[str, Any] | None = None, **fields: Any) -> str:
        return await asyncio.to_thread(self._client.track, key, data, **fields)

    async def identify(self, user_id: str | int | None, traits: dict[str, Any] | None = None, **fields: Any) -> str:
        return await asyncio.to_thread(self._client.identify, user_id, traits, **fields)

    async def flush(self, timeout: float = 10.0) -> bool:  # noqa: ASYNC109 - as in `Client`
        return await asyncio.to_thread(self._client.flush, timeout)

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - as in `Client`
        await asyncio.to_thread(self._client.close, timeout)
