"""How `pytest --dist loadfile` divides the tests among its processes."""

from __future__ import annotations

import re

from xdist.scheduler.loadscope import LoadScopeScheduling

__all__ = ["WorkUnits"]

_BROWSER = re.compile(r"(tests/acceptance/browser_client)/.*\[(chromium|firefox)\b")


class WorkUnits(LoadScopeScheduling):  # type: ignore[misc]  # its package has no types
    """The tests of a file run in one process. Those of the browser client with one browser do: it starts once."""

    def _split_scope(self, nodeid: str) -> str:
        of_browser = _BROWSER.match(nodeid)
        return "/".join(of_browser.groups()) if of_browser else nodeid.partition("::")[0]
