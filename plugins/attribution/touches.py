"""Touchpoints: events and identify requests that tell what brought the visitor."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import Any, Literal
from urllib.parse import unquote_plus

import msgspec

from ingestd.support.addresses import ascii_domain

from ..sources import ClickId
from ..sources.addresses import place_of
from .campaigns import Fields

__all__ = [
    "CAMPAIGN_FIELDS",
    "NONE",
    "Campaign",
    "Exclusions",
    "Kind",
    "NamedBy",
    "Touch",
    "campaign_of",
    "continues",
    "repeats",
    "text_of",
]

CAMPAIGN_FIELDS = ("source", "medium", "name", "term", "content")
_UTM = {"utm_source": 0, "utm_medium": 1, "utm_campaign": 2, "utm_term": 3, "utm_content": 4}

_MAX_TEXT = 256  # characters of a touchpoint's field; names are labels for people
_MAX_PARAMETERS = 500  # parameters of an address that are read
_MAX_NAME = 60  # characters of a parameter's name, enough for `utm_campaign` with each letter as %xx

Campaign = tuple[str | None, str | None, str | None, str | None, str | None]
"""Source, medium, name, term and content, each None if missing."""

NONE: Campaign = (None, None, None, None, None)

Kind = Literal["campaign", "click", "dispatch", "referrer"]
"""What a touchpoint is known by. A campaign comes before a click id, then come a dispatch and the page before."""

NamedBy = Literal["click", "referrer"]
"""What source and medium of a touchpoint come from, unless a campaign has them."""


class Touch(msgspec.Struct, frozen=True, array_like=True):
    """One touchpoint of a visitor.

    `at` is the event's timestamp in milliseconds, `position` its position in the journal. Touchpoints are stored, so a
    later version may only append members with defaults.
    """

    position: int
    at: int
    event_id: str
    session_id: str | None
    source: str | None
    medium: str | None
    name: str | None
    term: str | None
    content: str | None
    dispatch_id: str | None
    named_by: NamedBy | None = None
    click: ClickId | None = None

    @property
    def fields(self) -> Campaign:
        return self.source, self.medium, self.name, self.term, self.content

    @property
    def kind(self) -> Kind:
        return self.named_by or ("dispatch" if self.fields == NONE else "campaign")

    @property
    def campaign(self) -> Fields:
        """Source, medium and name, by which reports tell campaigns apart."""
        return self.source, self.medium, self.name

    @property
    def order(self) -> tuple[int, int]:
        """The sort key: the time, then the position in the journal."""
        return self.at, self.position


def continues(touch: Touch, earlier: Touch) -> bool:
    """Whether a touchpoint continues the run of an earlier one: its campaign, click id and dispatch are the same.

    What it lacks does not differ. So a referrer continues any run.
    """
    if touch.named_by is None and (fields := touch.fields) != NONE and (fields != earlier.fields or earlier.named_by):
        return False
    return touch.click in {None, earlier.click} and touch.dispatch_id in {None, earlier.dispatch_id}


def repeats(touches: Iterable[tuple[str, int, Touch]]) -> Collection[str]:
    """The event ids of touchpoints that are no arrivals, in the order of the journal.

    Each touchpoint comes with its visitor, and with the time from which on touchpoints were remembered when it came.
    """
    runs: dict[tuple[str, str], list[Touch]] = {}
    found = set()
    for visitor, since, touch in touches:
        if touch.session_id is None or touch.at < since:
            if touch.named_by == "referrer":
                found.add(touch.event_id)
            continue
        run = runs.setdefault((visitor, touch.session_id), [])
        index = bisect_right(run, touch.order, key=lambda each: each.order)
        if index and run[index - 1].at >= since and continues(touch, run[index - 1]):
            found.add(touch.event_id)
            continue
        while index < len(run) and continues(run[index], touch):
            found.add(run.pop(index).event_id)
        run.insert(index, touch)
    return found


def campaign_of(given: Any, page: Any) -> Campaign:
    """The campaign in `context.campaign`, or else in the `utm_…` parameters of `context.page.url`."""
    if isinstance(given, dict):
        campaign = _campaign(map(given.get, CAMPAIGN_FIELDS))
        if campaign != NONE:
            return campaign
    url = page.get("url") if isinstance(page, dict) else None
    return _utm(url) if isinstance(url, str) else NONE


def _utm(url: str) -> Campaign:
    """The campaign in the parameters of an address.

    They stand in its query, or else in its fragment, as `#utm_…` or `#/path?utm_…`. A name may have any case. Percent
    signs and pluses are decoded in names and values. Of repeated parameters, the first value that is not blank counts.
    """
    if "%" not in url and "utm_" not in url.lower():
        return NONE  # this test is quick, since most addresses have none
    start, _, fragment = url.partition("#")
    campaign = _campaign_in(start.partition("?")[2])
    return _campaign_in(fragment.partition("?")[2] or fragment) if fragment and campaign == NONE else campaign


def _campaign_in(query: str) -> Campaign:
    found: list[str | None] = [None] * len(_UTM)
    for parameter in query.split("&", _MAX_PARAMETERS)[:_MAX_PARAMETERS]:
        name, _, value = parameter.partition("=")
        if value and len(name) <= _MAX_NAME:
            index = _UTM.get(unquote_plus(name).lower())
            if index is not None and found[index] is None:
                found[index] = text_of(unquote_plus(value[: 12 * _MAX_TEXT]))
    return _campaign(found)


def _campaign(values: Iterable[Any]) -> Campaign:
    source, medium, name, term, content = map(text_of, values)
    return source, medium, name, term, content


def text_of(value: Any) -> str | None:
    """The text of a touchpoint's field, without blanks around it and cut to `_MAX_TEXT`. None if it is blank."""
    return (value.strip()[:_MAX_TEXT].strip() or None) if isinstance(value, str) else None


class Exclusions:
    """Campaigns that make no touchpoint: campaigns with these sources or mediums, or from a shop's own domains.

    A campaign is the shop's own if its source or the referring host is one of the domains or a subdomain.
    """

    def __init__(self, sources: Iterable[str], mediums: Iterable[str], domains: Iterable[str]) -> None:
        # A blank text would exclude every campaign without a source, medium or referrer.
        self._sources = {source.strip().casefold() for source in sources} - {""}
        self._mediums = {medium.strip().casefold() for medium in mediums} - {""}
        self._domains = {ascii_domain(domain.strip()).strip(".") for domain in domains} - {""}

    def __bool__(self) -> bool:
        return bool(self._sources or self._mediums or self._domains)

    def reason(self, campaign: Campaign, page: Any) -> str | None:
        """The reason why this campaign, of an event with `context.page`, is no touchpoint; None if it is one."""
        source, medium = ((value or "").casefold() for value in campaign[:2])
        if source in self._sources:
            return "excluded_source"
        if medium in self._mediums:
            return "excluded_medium"
        referrer = page.get("referrer") if isinstance(page, dict) else None
        if self._domains and (self._is_own(source) or self._is_own(place_of(referrer).host)):
            return "excluded_domain"
        return None

    def _is_own(self, host: str) -> bool:
        host = ascii_domain(host).removesuffix(".")
        return any(host == domain or host.endswith(f".{domain}") for domain in self._domains)
