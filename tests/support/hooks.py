"""The hooks of some plugins, without the loader."""

from __future__ import annotations

import pluggy

from ingestd.api import hookimpl, hookspecs
from ingestd.api.events import Session
from ingestd.api.hookspecs import HOOK_NAMESPACE
from ingestd.hooks.caller import Hooks

__all__ = ["hooks_of"]


class _Basis:
    """The two hooks that every daemon needs."""

    @hookimpl
    def authenticate(self) -> None:
        return None

    @hookimpl
    def resolve_session(self) -> Session:
        return Session("s", is_new=False)


def hooks_of(**plugins: object) -> Hooks:
    """The hooks of these plugins, by name."""
    manager = pluggy.PluginManager(HOOK_NAMESPACE)
    manager.add_hookspecs(hookspecs)
    for name, plugin in {**plugins, "basis": _Basis()}.items():
        manager.register(plugin, name)
    return Hooks(manager)
