"""The daemon's listening sockets, and requests to a daemon that already listens on an address."""

from __future__ import annotations

import errno
import http.client
import socket

from tornado.netutil import bind_sockets

from ingestd.api.errors import ConfigError
from ingestd.api.options import Address

__all__ = ["answers_events", "bind", "readiness"]

_BACKLOG = 1024
_PATIENCE = 3.0  # seconds for a daemon on this machine to answer


def bind(address: Address) -> list[socket.socket]:
    """Listen on the address. Raises `ConfigError` without the permission, `OSError` for errors that may pass."""
    try:
        return bind_sockets(address.port, address.host, backlog=_BACKLOG)
    except OSError as error:
        what = f"cannot listen on {address}: {error.strerror}"
        if error.errno == errno.EACCES:
            raise ConfigError(
                f"{what}; give the daemon the capability CAP_NET_BIND_SERVICE, or use a port from 1024"
            ) from error
        raise OSError(error.errno, what) from error


def answers_events(address: Address, path: str) -> bool:
    """Whether the listener there takes events. It gets a preflight request, which is not counted or logged."""
    answer = _ask(address, "OPTIONS", path)
    return (
        answer is not None and "x-request-id" in answer[1] and answer[1].get("access-control-allow-methods") == "POST"
    )


def readiness(address: Address) -> str | None:
    """The readiness of the daemon whose operators' listener has this address: `ok` or a reason.

    None if no such listener answers.
    """
    metrics = _ask(address, "GET", "/metrics")
    if metrics is None or b"\ningestd_build_info{" not in metrics[2]:
        return None
    ready = _ask(address, "GET", "/readyz")
    return None if ready is None else ready[2].decode("utf-8", "replace").strip()


def _ask(address: Address, method: str, path: str) -> tuple[int, dict[str, str], bytes] | None:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_PATIENCE)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read(1 << 24)
    except (OSError, http.client.HTTPException):  # nothing there speaks HTTP
        return None
    finally:
        connection.close()
