"""The hosts that the operators' listener answers to, so that no page of another site can read it.

A browser lets a page read answers of the page's own host. By DNS rebinding a site gives its host the address of this
listener. The request still names that host, and the listener refuses it.
"""

from __future__ import annotations

import logging
import re
import time

from ingestd.config import OpsOptions
from ingestd.support.addresses import ascii_domain, ip_address

__all__ = ["OwnHosts"]

log = logging.getLogger("ingestd.http")

_HOST = re.compile(r"(\[[^\[\]]*\]|[^:]*)(?::[0-9]*)?")
_LONGEST = 253  # characters of a host in a message
_SILENCE = 60.0  # seconds between two log lines


class OwnHosts:
    """The listener's hosts: addresses, localhost, names below it, the host of `[ops] listen`, `[ops] allowed_hosts`."""

    def __init__(self, options: OpsOptions) -> None:
        self._silent_until = float("-inf")
        self.adopt(options)

    def adopt(self, options: OpsOptions) -> None:
        """Answer to the hosts of these options from now on."""
        self._any = "*" in options.allowed_hosts
        own = {"localhost", ascii_domain(options.listen.host).removesuffix(".")}
        self._names = own | {name for name in options.allowed_hosts if not name.startswith("*")}
        self._endings = (".localhost", *(name[1:] for name in options.allowed_hosts if name.startswith("*.")))

    def refusal(self, host: str) -> str | None:
        """The reason for refusing this Host header, or None. An empty one is accepted: browsers always send a host."""
        if self._any or not host or self._is_own(host):
            return None
        shown = host[:_LONGEST]
        reason = (
            f"The operators' listener does not answer to the host {shown!r}. Add its name to [ops] allowed_hosts,"
            " or ask by an IP address or as localhost."
        )
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            log.warning("a request was answered 421: %s", reason)
        return reason

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().removesuffix(".")
        # An address is not looked up, so nobody can rebind it.
        return name in self._names or name.endswith(self._endings) or ip_address(name) is not None
