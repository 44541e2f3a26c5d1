"""The rules of a shop: the click id of an arrival, and the source and medium that it or a referrer names.

Ad networks know a click again by the parameters with click ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from ingestd.support.addresses import ascii_domain

from .addresses import place_of, site_of
from .tables import MEDIUMS, click_sources, known_app, known_host

__all__ = ["ClickId", "ClickSource", "SourceRules"]

_LONGEST_ADDRESS = 16_384  # characters
_LONGEST_TYPE = 60
_LONGEST_ID = 512
_PARAMETERS = 500


class ClickId(NamedTuple):
    """The name of the parameter as its network writes it, and its value."""

    type: str
    id: str


class ClickSource(str):
    """An option's source and medium of a click id, such as `mynet / cpc`. One without a medium is no paid click."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> ClickSource:
        if not isinstance(text, str) or not text.partition("/")[0].strip():
            raise ValueError('expected a source, or a source and a medium, such as "google / cpc"')
        return cls(text)

    @property
    def parts(self) -> tuple[str, str | None]:
        source, _, medium = self.partition("/")
        return source.strip(), medium.strip() or None


class Named(NamedTuple):
    """Source and medium, None if there is no source, and the rule in words."""

    source: str | None
    medium: str | None
    rule: str


class SourceRules:
    """The tables of the package, and before them the click ids and domains of the shop."""

    def __init__(
        self,
        *,
        click_ids: Mapping[str, ClickSource] = {},
        own_domains: Iterable[str] = (),
        exclude_domains: Iterable[str] = (),
    ) -> None:
        own = {name.strip().lower(): (name.strip(), *source.parts) for name, source in click_ids.items()}
        self._types = own | {name: row for name, row in click_sources().items() if name not in own}
        self._own_types = {*own}
        domains = {"is an own domain of the shop": own_domains, "is in exclude_domains": exclude_domains}
        self._domains = {
            host: reason
            for reason, names in reversed(domains.items())
            for name in names
            if (host := ascii_domain(name.strip()).strip("."))
        }

    @property
    def click_types(self) -> Collection[str]:
        """The names of parameters with click ids, in lower case."""
        return self._types.keys()

    def click_id_of(self, campaign: Any, page: Any) -> ClickId | None:
        """The click id in `context.campaign`, or else in the query or fragment of `context.page.url`."""
        if isinstance(campaign, dict):
            type_, id_ = campaign.get("click_id_type"), campaign.get("click_id")
            if isinstance(type_, str) and isinstance(id_, str) and type_.strip() and (id_ := _id(id_)):
                type_ = type_.strip()[:_LONGEST_TYPE]
                return ClickId(self._types[type_.lower()][0] if type_.lower() in self._types else type_, id_)
        url = page.get("url") if isinstance(page, dict) else None
        if not isinstance(url, str) or "=" not in url:
            return None
        start, _, fragment = url[:_LONGEST_ADDRESS].partition("#")
        found = self._in_query(start.partition("?")[2])
        return self._in_query(fragment.partition("?")[2] or fragment) if found is None and fragment else found

    def _in_query(self, query: str) -> ClickId | None:
        """Of several click ids, the first in the table: a link of an ad that somebody shares gets an `fbclid` too."""
        found: dict[str, str] = {}
        for parameter in query.split("&", _PARAMETERS)[:_PARAMETERS]:
            name, _, value = parameter.partition("=")
            if not value or len(name) > _LONGEST_TYPE:
                continue
            name = (unquote_plus(name) if "%" in name else name).lower()
            if name in self._types and (id_ := _id(unquote_plus(value[: 12 * _LONGEST_ID]))):
                found.setdefault(name, id_)
        if not found:
            return None
        first = next(iter(found)) if len(found) == 1 else next(name for name in self._types if name in found)
        return ClickId(self._types[first][0], found[first])

    def of_click(self, type: str) -> tuple[str, str | None]:
        """Source and medium. The medium is None where organic links carry the click id too, or nobody knows it."""
        row = self._types.get(type.lower())
        return (type.lower(), None) if row is None else row[1:]

    def explain_click(self, type: str) -> str:
        name = type.lower()
        if name not in self._types:
            return f"the click id {type} is in no table, so it is its own source"
        if name in self._own_types:
            return f"plugins.attribution.click_ids names {type}"
        links = "" if self._types[name][2] else ", which organic links carry too"
        return f"the table of click ids has {type}{links}"

    def of_referrer(self, page: Any) -> tuple[str, str] | None:
        """Source and medium of `context.page.referrer`.

        None without a usable address, and for the shop's own site and domains, excluded domains, and pages of payment
        and sign-in providers.
        """
        found = self.explain_referrer(page)
        return None if found.source is None or found.medium is None else (found.source, found.medium)

    def explain_referrer(self, page: Any) -> Named:
        referrer = page.get("referrer") if isinstance(page, dict) else None
        host, is_app = place_of(referrer) if referrer else ("", False)
        if not host:
            return Named(None, None, "there is no usable address")
        site = host if is_app else site_of(host)
        if (page_host := place_of(page.get("url")).host) and (host == page_host or site == site_of(page_host)):
            return Named(None, None, f"{host} is of the same site as the page")
        if self._domains and (reason := self._excluded(host)):
            return Named(None, None, f"{host} {reason}")
        known = known_app(host) if is_app else known_host(host, site)
        if known is None:
            return Named(host.removeprefix("www."), "referral", f"{host} is in no table")
        medium = MEDIUMS[known.kind]
        if medium is None:
            return Named(None, None, f"{known.found_by} is of {known.source}, for {known.kind}, which names no source")
        return Named(known.source, medium, f"{known.found_by} has the kind {known.kind}")

    def _excluded(self, host: str) -> str | None:
        """Why the host or a domain above it names no source."""
        labels = host.split(".")
        domains = (".".join(labels[index:]) for index in range(len(labels)))
        return next((self._domains[domain] for domain in domains if domain in self._domains), None)


def _id(value: str) -> str:
    return value.strip()[:_LONGEST_ID].strip()
