"""The results that `ingestd check` shows. Back ends return theirs from `Backend.describe`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from .errors import ConfigError

__all__ = ["CheckResult", "Status", "fault", "show_age", "show_size"]

Status = Literal["ok", "warning", "unavailable", "broken"]
"""`unavailable` and `broken` are faults. The first may pass without action; an operator must repair the second."""


class CheckResult(NamedTuple):
    """The result of one check. `facts` has further plain JSON values, which only `--json` shows."""

    name: str
    text: str
    status: Status = "ok"
    facts: Mapping[str, Any] = MappingProxyType({})


def fault(name: str, error: Exception) -> CheckResult:
    """The result of a check that raised an error: `broken` for a `ConfigError`, else `unavailable`."""
    text = str(error)
    if not text or isinstance(error, LookupError):  # the text of a LookupError is only the key
        text = repr(error)
    return CheckResult(name, text, "broken" if isinstance(error, ConfigError) else "unavailable")


def show_age(milliseconds: int) -> str:
    """An age or duration for people, rounded down to one unit: `850 ms`, `12 s`, `36 h`."""
    for limit, size, unit in ((1_000, 1, "ms"), (120_000, 1_000, "s"), (7_200_000, 60_000, "min")):
        if milliseconds < limit:
            return f"{milliseconds // size} {unit}"
    hours = milliseconds // 3_600_000
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"


def show_size(count: int) -> str:
    """A number of bytes for people: `512 B`, `1.4 MiB`."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
