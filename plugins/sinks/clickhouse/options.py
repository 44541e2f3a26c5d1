"""The options of a clickhouse sink."""

from __future__ import annotations

from pathlib import Path

from ingestd.api.options import Options, Secret, Url

__all__ = ["ClickHouseOptions"]


class ClickHouseOptions(Options):
    url: Url
    """The HTTP interface: `http://…:8123` or `https://…:8443`, perhaps with user and password."""
    user: str | None = None
    password: Secret | None = None
    database: str = "default"
    """The database of the table. It must exist."""
    table: str = "ingestd_records"
    """Created if missing."""
    async_insert: bool = False
    """Whether the server collects inserts before it writes them. The sink waits for that in both cases."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""
