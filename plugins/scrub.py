"""Removes or hashes members of events and identify requests before they are stored."""

from __future__ import annotations

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError
from ingestd.api.events import Event
from ingestd.api.options import Options as BaseOptions
from ingestd.api.options import Secret
from ingestd.support.json_pointers import ROOTS, MemberPointer
from ingestd.support.member_changes import MemberChanges

__all__ = ["ScrubPlugin"]


class ScrubPlugin:
    """Off unless a pointer is given. Only then does it have the hook `prepare`, so it slows no event while off."""

    class Options(BaseOptions):
        drop: tuple[MemberPointer, ...] = ()
        hash: tuple[MemberPointer, ...] = ()
        secret: Secret | None = None

    def __init__(self, options: Options) -> None:
        try:
            changes = MemberChanges(drop=options.drop, hash=options.hash, secret=options.secret)
        except ValueError as error:
            raise ConfigError(f"plugins.scrub.{error}") from None

        def prepare(event: Event) -> None:
            changes.apply({root: getattr(event, root) for root in ROOTS})

        if options.drop or options.hash:
            self.prepare = hookimpl(prepare)

    @hookimpl
    def take_over(self) -> None:
        """Nothing to take over: the options make all changes."""
