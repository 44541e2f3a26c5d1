"""Arrivals: what an event tells of the way on which its visitor came, by the rules of the shop."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ..sources import ClickId, SourceRules
from .touches import NONE, Campaign, Exclusions, NamedBy, campaign_of

__all__ = ["Arrival", "Arrivals", "Referrers"]

Referrers = Literal["fallback", "touchpoints", "off"]
"""Whether referrers count where nothing else does, like everything else, or never."""

_SCHEME = len("https://")


class Arrival(NamedTuple):
    campaign: Campaign
    """Source and medium may come from a click id or a referrer instead. All are None if there is only a dispatch."""
    named_by: NamedBy | None
    click: ClickId | None
    excluded: str | None
    """The reason why it does not count, or None."""


class Arrivals:
    def __init__(self, exclusions: Exclusions, sources: SourceRules, referrers: Referrers) -> None:
        self._exclusions = exclusions
        self.sources = sources
        self.has_referrers = referrers != "off"
        click_ids = "|".join(map(re.escape, sources.click_types))
        self._has_parameters = re.compile(rf"[?&#](?:utm_|(?:{click_ids})=|[^=&#?]*%)").search

    def are_named(self, page: Any) -> bool:
        """Whether the address of `context.page` may have a campaign or a click id. This is quick: most have none."""
        url = page.get("url") if isinstance(page, dict) else None
        return isinstance(url, str) and "=" in url and self._has_parameters(url.lower()) is not None

    def may_be_referred(self, page: Any) -> bool:
        """Whether the page may come after one of another site. This is quick: most come after one of the shop."""
        referrer = page.get("referrer") if self.has_referrers and isinstance(page, dict) else None
        if not isinstance(referrer, str) or not referrer:
            return False
        url = page.get("url")
        end = url.find("/", _SCHEME) if isinstance(url, str) else 0
        return end <= 0 or not referrer.startswith(url[: end + 1])  # the same scheme and host

    def of(self, given: Any, page: Any, *, has_dispatch: bool, is_first: Callable[[], bool]) -> Arrival | None:
        """The arrival of an event with this `context.campaign` and `context.page`, None if it is none.

        `is_first` tells whether a referrer would be the first touchpoint of its session.
        """
        campaign, click = NONE, None
        named_by: NamedBy | None = None
        is_named = self.are_named(page)
        if given is not None or is_named:
            campaign = campaign_of(given, page)
            click = self.sources.click_id_of(given, page if is_named else None)
        if campaign == NONE:
            found: tuple[str, str | None] | None = None
            if click is not None:
                named_by, found = "click", self.sources.of_click(click.type)
            elif not has_dispatch and self.may_be_referred(page) and is_first():
                named_by, found = "referrer", self.sources.of_referrer(page)
            if found is not None:
                campaign = (*found, None, None, None)
            elif not has_dispatch:
                return None
        excluded = self._exclusions.reason(campaign, page) if self._exclusions else None
        return Arrival(campaign, named_by, click, excluded)
