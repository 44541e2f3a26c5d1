"""Binding the addresses of the daemon, and finding out who else has."""

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
    """Listen there. Raises `ConfigError` where this user may not, `OSError` for what may pass."""
    try:
        return bind_sockets(address.port, address.host, backlog=_BACKLOG)
    except OSError as error:
        what = f"cannot listen on {address}: {error.strerror}"
        if error.errno == errno.EACCES:
            raise ConfigError(
                f"{what}; give the daemon the capability CAP_NET_BIND_SERVICE, or a port of 1024 or above"
            ) from error
        raise OSError(error.errno, what) from error


def answers_events(address: Address, path: str) -> bool:
    """Whether what listens there takes events, as a preflight tells: nothing is counted or logged for it."""
    answer = _ask(address, "OPTIONS", path)
    return (
        answer is not None and "x-request-id" in answer[1] and answer[1].get("access-control-allow-methods") == "POST"
    )


def readiness(address: Address) -> str | None:
    """What the operators' listener of an ingestd there says of its readiness: `ok` or a reason.

    None where there is none.
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
    except (OSError, http.client.HTTPException):  # whatever it is, it does not speak HTTP
        return None
    finally:
        connection.close()
