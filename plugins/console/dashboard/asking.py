"""The panels of plugins. A plugin that fails gets a panel that says so, and one line in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from ingestd.api.panels import Panel
from ingestd.api.store import Store
from ingestd.hooks.caller import HookFailure, Hooks

__all__ = ["Panels"]

log = logging.getLogger("ingestd.overview")


class Panels:
    """`hooks` returns the hooks of the present generation."""

    def __init__(self, hooks: Callable[[], Hooks], store: Store) -> None:
        self._hooks = hooks
        self._store = store
        self._failing: set[str] = set()

    async def ask(self, selection: Mapping[str, str]) -> Sequence[Panel]:
        """The panels of all plugins, in the order of the plugins. Never raises."""
        shown = []
        for plugin, answer in await self._hooks().show_panel(self._store, selection):
            if isinstance(answer, HookFailure):
                if plugin not in self._failing:
                    log.warning("%s: %r", answer, answer.__cause__)
                self._failing.add(plugin)
                shown.append(Panel(plugin, [], note="This panel has failed. The log has the reason."))
            else:
                self._failing.discard(plugin)
                shown.append(answer)
        return shown
