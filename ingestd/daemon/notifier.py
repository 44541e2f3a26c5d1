"""Notifications to systemd: readiness, status and the watchdog.

The protocol is sd_notify(3): lines in a datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing
is sent. An error in sending never harms the daemon. The event loop feeds the watchdog, so systemd detects a blocked
loop after WATCHDOG_USEC.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

from ingestd.support.periodic import TIMING, every

__all__ = ["Notifier"]

log = logging.getLogger("ingestd.notify")

_BEATS = 3  # messages in the watchdog's time, so that one may come late
_EXTENSION = 30.0  # seconds by which each message extends a slow start
_SEND_TIMEOUT = 1.0  # seconds for systemd to make room for a message that must not be lost


class Notifier:
    """The notifier of a supervisor that speaks sd_notify. `environment` is the environment of the process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._socket: socket.socket | None = None
        self._remark = ""
        address = environment.get("NOTIFY_SOCKET", "")
        if address:
            self._open(address)
        self.watchdog = _watchdog(environment) if self._socket is not None else None
        """The seconds after which systemd considers a silent daemon hung, None without a watchdog."""

    def _open(self, address: str) -> None:
        if address[0] not in "/@":
            log.warning("NOTIFY_SOCKET is %r, and must be a path or an abstract name", address)
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.settimeout(_SEND_TIMEOUT)
        try:
            sock.connect(f"\0{address[1:]}" if address[0] == "@" else address)
        except (OSError, ValueError) as error:  # ValueError: a null character in a path
            sock.close()
            log.warning("cannot connect to NOTIFY_SOCKET %r: %s", address, error)
            return
        self._socket = sock

    # Phases of the daemon

    def ready(self, status: str) -> None:
        """The start or a reload has ended."""
        self._tell("READY=1", _status(status))

    def reloading(self) -> None:
        """A reload begins. `ready` must follow, also after a refused reload."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell("RELOADING=1", f"MONOTONIC_USEC={now}", _status("reloading the configuration"))

    def stopping(self, status: str, limit: float) -> None:
        """The shutdown has begun, and takes at most `limit` seconds, even if the unit allows less."""
        self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={_microseconds(limit)}", _status(status))

    def status(self, text: str) -> None:
        """Set the text in `systemctl status` until the next status."""
        self._tell(_status(text))

    def remark(self, text: str) -> None:
        """Set a text that `keepalive` appends to every status. An empty text removes it."""
        self._remark = text

    def close(self) -> None:
        """Close the socket. Later messages are not sent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # Repeated messages

    def extend(self, status: str) -> None:
        """Have systemd wait for a start or a stop for 30 more seconds."""
        self._tell(_status(status), f"EXTEND_TIMEOUT_USEC={_microseconds(_EXTENSION)}")

    async def keepalive(self, describe: Callable[[float], str]) -> None:
        """Feed the watchdog and update the status. Never returns.

        `describe` returns the status. Its argument is the time in seconds since its last call.
        """
        pause = TIMING.systemd if self.watchdog is None else min(TIMING.systemd, self.watchdog / _BEATS)
        clock = asyncio.get_running_loop().time
        last = clock()

        def tell() -> None:
            nonlocal last
            seconds, last = clock() - last, clock()
            if self._socket is not None:
                fed: tuple[str, ...] = ("WATCHDOG=1",) if self.watchdog is not None else ()
                remark = f"; {self._remark}" if self._remark else ""
                self._tell(*fed, _status(describe(seconds) + remark), wait=False)

        await every("systemd", tell, pause=pause)

    def _tell(self, *lines: str, wait: bool = True) -> None:
        """Send a message. Without `wait`, it is lost if systemd's queue is full, since the next one comes soon."""
        if self._socket is None:
            return
        try:
            self._socket.settimeout(_SEND_TIMEOUT if wait else 0)
            self._socket.send("\n".join(lines).encode("utf-8", "replace"))
        except OSError as error:
            if wait:
                log.warning("cannot send %s to systemd: %s", lines[0], error)


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"  # a line break would begin another assignment


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _watchdog(environment: Mapping[str, str]) -> float | None:
    """The watchdog's time for this process in seconds, None without a watchdog."""
    given, whose = environment.get("WATCHDOG_USEC"), environment.get("WATCHDOG_PID")
    if given is None or whose not in {None, str(os.getpid())}:
        return None
    if not (given.isascii() and given.isdigit() and int(given)):
        log.warning("WATCHDOG_USEC is %r, and must be a positive whole number: the watchdog is not fed", given)
        return None
    return int(given) / 1_000_000
