"""Channels: the groups of sources that a marketer compares, by rules as GA4's default channel groups have them.

https://support.google.com/analytics/answer/9756891 documents them, as of November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ingestd.api.errors import ConfigError
from ingestd.api.options import Options

from .tables import source_group

__all__ = ["ChannelRule", "Channels", "Expression"]

_LONGEST = 256
"""Characters of a text that rules read. An operator's regular expression may be slow in long texts of strangers."""
_REMEMBERED = 1024

_SHOP = re.compile(r"(?:^|[^a-df-z])shop|shopping", re.IGNORECASE)
_DISPLAY = {"display", "banner", "expandable", "interstitial", "cpm"}
_SOCIAL = {"social", "social-network", "social-media", "sm", "social network", "social media"}
_EMAIL = {"email", "e-mail", "e_mail", "e mail"}


class Expression(str):
    """A regular expression for a whole text, in any case. A list of texts is one that takes each of them."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Any) -> Expression:
        if isinstance(value, list) and value and all(isinstance(each, str) and each.strip() for each in value):
            return cls("|".join(re.escape(each.strip()) for each in value))
        if not isinstance(value, str) or not value:
            raise ValueError("expected a regular expression or a list of texts")
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"expected a regular expression: {error}") from None
        return cls(value)


class ChannelRule(Options):
    """A rule of the shop. It takes a source if all of its expressions take their text."""

    name: str
    source: Expression | None = None
    medium: Expression | None = None
    campaign: Expression | None = None


class _Visit(NamedTuple):
    """The texts in lower case, empty where there is none, and the group of the source in the table of hosts."""

    source: str
    medium: str
    name: str
    group: str | None


def _paid(visit: _Visit) -> bool:
    medium = visit.medium
    return "cp" in medium or medium in {"ppc", "retargeting"} or medium.startswith("paid")


def _shopping(visit: _Visit) -> bool:
    return visit.group == "shopping" or _SHOP.search(visit.name) is not None


def _search(visit: _Visit) -> bool:
    return visit.group == "search"


_PAID = "the medium is ppc or retargeting, begins with paid or contains cp"

_DEFAULTS: Sequence[tuple[str, Callable[[_Visit], bool], str]] = (
    (
        "Direct",
        lambda visit: visit.source == "(direct)" and visit.medium in {"(none)", "(not set)", ""},
        "the source is (direct), and there is no medium",
    ),
    ("Cross-network", lambda visit: "cross-network" in visit.name, "the campaign contains cross-network"),
    (
        "Paid Shopping",
        lambda visit: _paid(visit) and _shopping(visit),
        f"the source is a shopping site or the campaign names a shop, and {_PAID}",
    ),
    ("Paid Search", lambda visit: _paid(visit) and _search(visit), f"the source is a search engine, and {_PAID}"),
    (
        "Paid Social",
        lambda visit: _paid(visit) and visit.group == "social",
        f"the source is a social network, and {_PAID}",
    ),
    ("Paid Video", lambda visit: _paid(visit) and visit.group == "video", f"the source is a video site, and {_PAID}"),
    ("Display", lambda visit: visit.medium in _DISPLAY, "the medium is of display ads, such as banner"),
    ("Paid Other", _paid, _PAID),
    ("Organic Shopping", _shopping, "the source is a shopping site, or the campaign names a shop"),
    (
        "Organic Social",
        lambda visit: visit.group == "social" or visit.medium in _SOCIAL,
        "the source is a social network, or the medium is social",
    ),
    (
        "Organic Video",
        lambda visit: visit.group == "video" or "video" in visit.medium,
        "the source is a video site, or the medium contains video",
    ),
    (
        "Organic Search",
        lambda visit: _search(visit) or visit.medium == "organic",
        "the source is a search engine, or the medium is organic",
    ),
    (
        "AI Assistant",
        lambda visit: visit.group == "ai" or visit.medium in {"ai", "ai-assistant"},
        "the source is an assistant, or the medium is ai",
    ),
    ("Referral", lambda visit: visit.medium in {"referral", "app", "link"}, "the medium is referral, app or link"),
    ("Email", lambda visit: visit.source in _EMAIL or visit.medium in _EMAIL, "the source or the medium is email"),
    ("Affiliates", lambda visit: visit.medium == "affiliate", "the medium is affiliate"),
    ("Audio", lambda visit: visit.medium == "audio", "the medium is audio"),
    ("SMS", lambda visit: "sms" in {visit.source, visit.medium}, "the source or the medium is sms"),
    (
        "Mobile Push Notifications",
        lambda visit: (
            visit.medium.endswith("push")
            or "mobile" in visit.medium
            or "notification" in visit.medium
            or visit.source == "firebase"
        ),
        "the medium ends with push or contains mobile or notification, or the source is firebase",
    ),
)
"""Each channel with its rule, in code and in words. The first that takes a source counts."""


class Channels:
    """The rules of the shop, then the default ones. Raises `ConfigError` for a rule without an expression."""

    def __init__(self, rules: Sequence[ChannelRule] = ()) -> None:
        self._own: list[tuple[str, list[re.Pattern[str] | None]]] = []
        for index, rule in enumerate(rules):
            given = (rule.source, rule.medium, rule.campaign)
            if not rule.name.strip() or not any(given):
                path = f"plugins.attribution.channels[{index}]"
                raise ConfigError(f"{path}: expected a name, and a source, medium or campaign")
            expressions = [None if each is None else re.compile(each, re.IGNORECASE) for each in given]
            self._own.append((rule.name.strip(), expressions))
        self.explain = lru_cache(_REMEMBERED)(self._find)
        """The channel of a source, medium and name of a campaign, and its rule in words."""

    @property
    def names(self) -> Sequence[str]:
        """All channels, the shop's own first."""
        return [*dict.fromkeys([*(name for name, _ in self._own), *(name for name, *_ in _DEFAULTS), "Unassigned"])]

    def of(self, source: str | None, medium: str | None, name: str | None) -> str:
        """The channel of a source, medium and name of a campaign. "Unassigned" if no rule takes them."""
        return self.explain(source, medium, name)[0]

    def of_texts(self, texts: Mapping[str, Any]) -> str:
        """The channel that a record has. Records of earlier versions and costs have none, so the rules decide."""
        recorded: str | None = texts.get("channel")
        return recorded or self.of(texts.get("source"), texts.get("medium"), texts.get("name"))

    def _find(self, *given: str | None) -> tuple[str, str]:
        texts = [(text or "").strip()[:_LONGEST] for text in given]
        for index, (channel, expressions) in enumerate(self._own):
            if all(each is None or each.fullmatch(text) for each, text in zip(expressions, texts, strict=True)):
                return channel, f"plugins.attribution.channels[{index}]"
        source, medium, name = (text.lower() for text in texts)
        visit = _Visit(source, medium, name, source_group(source) if source else None)
        taken = ((channel, words) for channel, takes, words in _DEFAULTS if takes(visit))
        return next(taken, ("Unassigned", "no rule takes it"))
