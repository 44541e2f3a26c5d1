"""A reload (docs/reloading.md) calls it instead of `startup` on a plugin whose options have changed. A plugin without
this hook, or one that registers consumers or stores, gets other options by a restart only. Taking two minutes, as
raising, refuses the reload.
"""

from prometheus_client import Counter

from ingestd.api import hookimpl
from ingestd.api.options import Options as BaseOptions


class Robots:
    class Options(BaseOptions):
        names: tuple[str, ...] = ("crawler",)

    def __init__(self, options: Options) -> None:
        self.names = options.names
        self.seen = Counter("ingestd_robots_seen", "Events of robots.", registry=None)

    @hookimpl
    def take_over(self, predecessor: "Robots") -> None:
        self.seen = predecessor.seen  # registered by its startup, and it goes on counting
