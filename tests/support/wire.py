"""A WebSocket on which a browser takes numbered commands, and tells events between their answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

from .daemon import PATIENCE

__all__ = ["START", "Wire", "ending_on_failure"]

START = 120.0
"""Seconds in which a browser has started, however busy the machine is."""

_MOST = 64 * 1024 * 1024  # the largest message in bytes; a picture is one message


@contextmanager
def ending_on_failure(browser: subprocess.Popen[bytes]) -> Iterator[None]:
    """A browser whose start fails ends."""
    try:
        yield
    except BaseException:
        browser.kill()
        browser.wait()
        raise


class Wire:
    """A connection. `happened` takes each event as the browser tells it."""

    def __init__(self, url: str, happened: Callable[[dict[str, Any]], None]) -> None:
        self._happened = happened
        self._runner = asyncio.Runner()
        self._number = 0
        self._socket = self._runner.run(self._connect(url))

    async def _connect(self, url: str) -> WebSocketClientConnection:
        return await websocket_connect(url, max_message_size=_MOST)

    def call(
        self, method: str, params: dict[str, Any], more: Mapping[str, Any] | None = None, patience: float = PATIENCE
    ) -> dict[str, Any]:
        """Sends a command, handles events until its answer arrives, and returns the whole answer."""
        return self._runner.run(asyncio.wait_for(self._call(method, params, more or {}), patience))

    async def _call(self, method: str, params: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        number = self._number
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": params, **more}))
        while True:
            told = await self._socket.read_message()
            assert told is not None, "the browser has closed the connection"
            answer: dict[str, Any] = json.loads(told)
            if answer.get("id") == number:
                return answer
            self._happened(answer)

    def close(self) -> None:
        self._runner.run(self._hang_up())
        self._runner.close()

    async def _hang_up(self) -> None:
        self._socket.close()
        while await self._socket.read_message() is not None:
            pass
