"""The built-in sinks."""

from __future__ import annotations

from ingestd.api.errors import ConfigError

__all__ = ["not_installed"]


def not_installed(sink: str, package: str, extra: str) -> ConfigError:
    """The error of a sink whose library is missing."""
    return ConfigError(
        f"sinks.{sink}.type: needs {package}, which is not installed: pip install '.[{extra}]' in ingestd's source"
    )
