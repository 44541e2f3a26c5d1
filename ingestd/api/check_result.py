"""What `ingestd check` tells of one thing it has looked at; back ends tell theirs in `Backend.describe`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from .errors import ConfigError

__all__ = ["CheckResult", "Status", "fault", "show_age", "show_size"]

Status = Literal["ok", "warning", "unavailable", "broken"]
"""The last two are faults: what is `unavailable` may pass by itself, what is `broken` must be mended first."""


class CheckResult(NamedTuple):
    """One thing and how it was found. `facts` is what `--json` tells of it besides; plain JSON values."""

    name: str
    text: str
    status: Status = "ok"
    facts: Mapping[str, Any] = MappingProxyType({})


def fault(name: str, error: Exception) -> CheckResult:
    """The finding that this was raised: `broken` for a `ConfigError`, else `unavailable`."""
    text = str(error)
    if not text or isinstance(error, LookupError):  # whose text is the key alone
        text = repr(error)
    return CheckResult(name, text, "broken" if isinstance(error, ConfigError) else "unavailable")


def show_age(milliseconds: int) -> str:
    """How long something took or is ago, in its two leading digits or so: `850 ms`, `12 s`, `36 h`."""
    for limit, size, unit in ((1_000, 1, "ms"), (120_000, 1_000, "s"), (7_200_000, 60_000, "min")):
        if milliseconds < limit:
            return f"{milliseconds // size} {unit}"
    hours = milliseconds // 3_600_000
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"


def show_size(count: int) -> str:
    """Bytes for people: `512 B`, `1.4 MiB`."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
