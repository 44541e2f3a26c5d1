"""The options of a postgres sink, and the check of its URL."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qs, parse_qsl, urlsplit

from ingestd.api.errors import ConfigError
from ingestd.api.exposure import is_local, remote_host
from ingestd.api.options import Options, Url

__all__ = ["PostgresOptions", "check_url", "not_verified"]

_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\],]*)(:[0-9]{1,5})?")


class PostgresOptions(Options):
    url: Url
    """postgresql://user:password@host:port/database, with parameters of asyncpg such as `?sslmode=verify-full`."""
    table: str = "ingestd_records"
    """Created if missing. `schema.table` if it is not in the first schema of the user's `search_path`."""


def check_url(url: str, option: str) -> None:
    """Raise `ConfigError` for a URL that asyncpg would refuse. Messages of asyncpg could show parts of a password."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    good = re.match("(?i)postgres(ql)?://", url) is not None and not parts.fragment
    good = good and url.count("@") == parts.netloc.count("@") <= 1 and all(map(_HOST.fullmatch, hosts))
    try:
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"{option}: expected postgresql://user:password@host:port/database;"
            " in a password, write / ? # @ : % and letters beyond ASCII as %2F …"
        )


def not_verified(url: str) -> str | None:
    """The host of a server on another machine whose certificate asyncpg does not verify with its name, or None.

    As asyncpg reads them, the environment has what the URL lacks.
    """
    given = parse_qs(urlsplit(url).query)
    mode = given.get("sslmode", [os.environ.get("PGSSLMODE", "")])[-1]
    if mode.replace("_", "-") == "verify-full":
        return None
    if urlsplit(url).netloc.rpartition("@")[2]:
        return remote_host(url)
    hosts = given.get("host", [os.environ.get("PGHOST", "")])[-1]
    return next((host for host in hosts.split(",") if not is_local(host)), None)
