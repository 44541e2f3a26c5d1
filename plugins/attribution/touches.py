"""Touchpoints: what of an event or identify request says that a campaign brought the visitor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

import msgspec

from ingestd.api.domains import ascii_domain

from .campaigns import campaign_name

__all__ = ["CAMPAIGN_FIELDS", "Exclusions", "Touch", "campaign_of", "may_have_campaign", "text_of"]

CAMPAIGN_FIELDS = ("source", "medium", "name", "term", "content")
_UTM = {"utm_source": 0, "utm_medium": 1, "utm_campaign": 2, "utm_term": 3, "utm_content": 4}

_MAX_TEXT = 256  # characters of a touchpoint's field; names are labels for people
_MAX_PARAMETERS = 500  # of an address that are looked at
_MAX_NAME = 60  # characters of a parameter's name, each letter of it written as %xx

Campaign = tuple[str | None, str | None, str | None, str | None, str | None]
"""Source, medium, name, term and content; None where it has none."""

_HOST_FIRST = re.compile(r"(?://)?([^\s/?#@:\\]+)(?::[0-9]{1,5})?(?:[/?#].*)?", re.DOTALL)
"""A referrer without a scheme, as some apps send it: a host, maybe with a port, a path or a query."""

_NONE: Campaign = (None, None, None, None, None)


class Touch(msgspec.Struct, frozen=True, array_like=True):
    """One touchpoint of a visitor.

    `at` is the event's timestamp in milliseconds, `position` its place in the journal.
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

    @property
    def campaign(self) -> str:
        """Source, medium and name in one text."""
        return campaign_name(self.source, self.medium, self.name)

    @property
    def order(self) -> tuple[int, int]:
        """Earlier ones sort first; the journal decides between those of one time."""
        return self.at, self.position


def may_have_campaign(page: Any) -> bool:
    """Whether the address of `context.page` can have `utm_…` parameters: a quick look, since most have none."""
    url = page.get("url") if isinstance(page, dict) else None
    return isinstance(url, str) and "?" in url and ("%" in url or "utm_" in url.lower())


def campaign_of(given: Any, page: Any) -> Campaign:
    """The campaign that `context.campaign` is, or else that of the `utm_…` parameters of `context.page.url`."""
    if isinstance(given, dict):
        campaign = _campaign(map(given.get, CAMPAIGN_FIELDS))
        if campaign != _NONE:
            return campaign
    url = page.get("url") if isinstance(page, dict) else None
    return _utm(url) if isinstance(url, str) else _NONE


def _utm(url: str) -> Campaign:
    """Names in any case; names and values percent- and plus-decoded; of several, the first that says anything."""
    query = url.partition("?")[2].partition("#")[0]
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
    """What a field of a touchpoint says, without blanks around it and cut to a bound; None if that is nothing."""
    return (value.strip()[:_MAX_TEXT].strip() or None) if isinstance(value, str) else None


class Exclusions:
    """Campaigns that may not be a touchpoint: of these sources or mediums, or of a shop's own domains.

    Own is a campaign whose source is one of the domains or below it, or that came from a page there.
    """

    def __init__(self, sources: Iterable[str], mediums: Iterable[str], domains: Iterable[str]) -> None:
        # A blank one would be that of every campaign without source, medium or referrer.
        self._sources = {source.strip().casefold() for source in sources} - {""}
        self._mediums = {medium.strip().casefold() for medium in mediums} - {""}
        self._domains = {ascii_domain(domain.strip()).strip(".") for domain in domains} - {""}

    def __bool__(self) -> bool:
        return bool(self._sources or self._mediums or self._domains)

    def reason(self, campaign: Campaign, page: Any) -> str | None:
        """Why this campaign, of an event with `context.page`, is no touchpoint; or None if it is one."""
        source, medium = ((value or "").casefold() for value in campaign[:2])
        if source in self._sources:
            return "excluded_source"
        if medium in self._mediums:
            return "excluded_medium"
        if self._domains and (self._is_own(source) or self._is_own(_referring_host(page))):
            return "excluded_domain"
        return None

    def _is_own(self, host: str) -> bool:
        host = ascii_domain(host).removesuffix(".")
        return any(host == domain or host.endswith(f".{domain}") for domain in self._domains)


def _referring_host(page: Any) -> str:
    referrer = page.get("referrer") if isinstance(page, dict) else None
    if not isinstance(referrer, str):
        return ""
    referrer = referrer[:2048].strip()
    plain = _HOST_FIRST.fullmatch(referrer)
    try:
        host = (urlsplit(referrer).hostname or "") if plain is None else plain[1]
    except ValueError:  # no address
        return ""
    return unquote(host) if "%" in host else host
