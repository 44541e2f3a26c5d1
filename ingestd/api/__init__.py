"""The interface for plugins: a plugin imports nothing else of ingestd. docs/hooks.md lists every name."""

from __future__ import annotations

import pluggy

from ingestd import __version__

__all__ = ["HOOK_NAMESPACE", "__version__", "hookimpl"]

HOOK_NAMESPACE = "ingestd"

hookimpl = pluggy.HookimplMarker(HOOK_NAMESPACE)
"""Marks a function or method of a plugin as the implementation of the hook with the same name."""
