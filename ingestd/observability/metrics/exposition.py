"""The answer of /metrics: the registry in Prometheus' text format, rendered on a thread beside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Renders a registry on its own thread, one rendering at a time.

    Scrapes that arrive during a rendering share the next one. So no scrape gets numbers from before its arrival, and
    many simultaneous scrapes cost two renderings.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        # Otherwise each counter would have a second sample, the time of its creation.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library declares no types here
        self._registry = registry
        # Not the loop's default threads: all of them may be waiting for a disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._current: asyncio.Future[bytes] | None = None
        self._next: asyncio.Future[bytes] | None = None

    async def render(self) -> bytes:
        """Render the present values. An exception of a collector is raised."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._current))
        return await asyncio.shield(self._next)  # a cancelled scrape must not cancel it for the others

    async def _after(self, current: asyncio.Future[bytes] | None) -> bytes:
        if current is not None:
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        return await asyncio.get_running_loop().run_in_executor(self._thread, generate_latest, self._registry)
