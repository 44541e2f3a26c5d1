"""All that a plugin imports. docs/writing-plugins.md lists it name by name."""

from __future__ import annotations

import pluggy

from ingestd import __version__

__all__ = ["HOOK_NAMESPACE", "__version__", "hookimpl"]

HOOK_NAMESPACE = "ingestd"

hookimpl = pluggy.HookimplMarker(HOOK_NAMESPACE)
"""Marks a function or method of a plugin as the implementation of the hook of its name."""
