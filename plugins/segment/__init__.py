"""The intake of Segment's and RudderStack's SDKs, unchanged: their paths, messages and answers. docs/sdks.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import field

from ingestd.api import hookimpl
from ingestd.api.hookspecs import Daemon
from ingestd.api.intake import Intake
from ingestd.api.options import Options as BaseOptions

from .intake import SegmentIntake

__all__ = ["SegmentPlugin"]


class SegmentPlugin:
    class Options(BaseOptions):
        names: dict[str, str] = field(default_factory=dict)
        unknown: Literal["refuse", "accept"] = "refuse"

    def __init__(self, options: Options) -> None:
        self._intake = SegmentIntake(options.names, accepts_unknown=options.unknown == "accept")

    @hookimpl
    def register_intakes(self, register: Callable[[Intake], None]) -> None:
        register(self._intake)

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        self._intake.unusable_ids = daemon.unusable_ids

    @hookimpl
    def take_over(self, predecessor: SegmentPlugin) -> None:
        self._intake.unusable_ids = predecessor._intake.unusable_ids
