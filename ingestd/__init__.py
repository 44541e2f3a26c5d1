"""Customer-event ingestion for e-commerce: HTTP endpoints, a durable journal, sinks."""

from __future__ import annotations

import pluggy

__all__ = ["__version__", "hookimpl"]

__version__ = "0.1.0"

HOOK_NAMESPACE = "ingestd"

hookimpl = pluggy.HookimplMarker(HOOK_NAMESPACE)
"""Marks a function or method of a plugin as the implementation of the hook of its name."""
