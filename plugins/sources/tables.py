"""The tables of the package: hosts, names of sources and click ids. docs/sources.md tells where they come from."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["MEDIUMS", "Known", "click_sources", "known_app", "known_host", "source_group"]

MEDIUMS: Mapping[str, str | None] = {
    "search": "organic",
    "portal": "organic",
    "social": "social",
    "ai": "ai",
    "email": "email",
    "mail": "email",
    "paid": "cpc",
    "video": "referral",
    "shopping": "referral",
    "payment": None,
    "sign-in": None,
}
"""The medium of a referrer of each kind of host. None names no source: the visitor was already in the shop."""

_GROUPS = {"portal": "search", "mail": "email"}
"""The group of a source for channels, where it is not its kind."""

_REMEMBERED = 1024
_LAND = re.compile(r"(?:(?:\.(?:com?|org|net|edu|gov|ne|or|go))?\.[a-z]{2}|\.com|\.net)\Z")
"""The end of a domain of one country. A row with `*`, such as `google.*`, takes these and no others."""
_MAIL = re.compile(
    r"(?:web|e-?|w|my|upc|light)?mail(?:er|box|business)?[0-9]{0,3}[a-z]?(?:-[a-z0-9-]+)?"
    r"|roundcube|messagerie(?:pro)?[0-9]*|owa|posteingang|correo|poczta"
)
_SECURE = re.compile(r"(?:[a-z0-9]+-)*(?:3-?ds(?:ecure)?[0-9]*|3d-secure|acs[0-9]*)(?:-[a-z0-9]+)*")
"""A label of a host of 3-D Secure, where banks confirm payments by card."""
_PORTAL = re.compile(
    r"(?:www?[0-9]*|m|mobile|wap|search|images?|video|cse|encrypted|ipv[46]|go|lens|scholar|clck"
    r"|[a-z]{2})"
)
"""The labels before the name of a portal that belong to its search: `m.google.de`, and not `docs.google.com`."""


class Known(NamedTuple):
    source: str
    kind: str
    found_by: str
    """What names it, in words."""


@cache
def _hosts() -> tuple[dict[str, Known], dict[str, Known], dict[str, str | None]]:
    """The rows by host, the rows with `*` by what stands before it, and the group of each source in hosts.csv.

    A source that names several groups, such as a provider of search and mail, has none: then the medium decides.
    """
    exact: dict[str, Known] = {}
    lands: dict[str, Known] = {}
    names: dict[str, str | None] = {}
    for file in ("matomo.csv", "hosts.csv"):  # the second replaces rows of the first
        for row in _rows(file):
            host, source, kind = row["host"], row["source"], row["kind"]
            (lands if host.endswith(".*") else exact)[host.removesuffix(".*")] = Known(source, kind, f"the row {host}")
            if file == "hosts.csv" and MEDIUMS[kind] is not None and kind != "paid":
                names[source] = _group(kind) if names.get(source, _group(kind)) == _group(kind) else None
    return exact, lands, names


@cache
def click_sources() -> Mapping[str, tuple[str, str, str | None]]:
    """The spelling, source and medium of each click id by its name in lower case. The first in a query counts."""
    return {row["type"].lower(): (row["type"], row["source"], row["medium"] or None) for row in _rows("click_ids.csv")}


def _rows(file: str) -> list[dict[str, str]]:
    return [*csv.DictReader(files(__package__).joinpath(file).read_text().splitlines())]


def known_app(name: str) -> Known | None:
    return _hosts()[0].get(name)


@lru_cache(_REMEMBERED)
def known_host(host: str, site: str) -> Known | None:
    """The entry of a host, or of the nearest domain above it. `site` is the registrable domain of the host."""
    exact, lands, _ = _hosts()
    end = _LAND.search(host, max(0, len(host) - 7))  # `.com.au` is the longest
    labels = host.split(".")
    for index in range(len(labels) - 1):
        domain = ".".join(labels[index:])
        known = exact.get(domain)
        if known is None and end is not None:
            known = lands.get(domain[: end.start() - len(host)])
        if known is None:
            continue
        if known.kind == "mail":  # a portal with mail
            return _by_label(host, site, _MAIL, known.source, "email")
        if known.kind == "portal" and not all(map(_PORTAL.fullmatch, labels[:index])):
            break
        return known
    return _by_label(host, site, _MAIL, site, "email") or _by_label(host, site, _SECURE, "3-d secure", "payment")


def _by_label(host: str, site: str, label: re.Pattern[str], source: str, kind: str) -> Known | None:
    """A host with such a label before the registrable domain, such as `webmail`."""
    labels = filter(label.fullmatch, host[: len(host) - len(site)].split(".")[:-1])
    return next((Known(source, kind, f"the label {each}") for each in labels), None)


@lru_cache(_REMEMBERED)
def source_group(source: str) -> str | None:
    """The group of a source as campaigns name it, in lower case: a name such as `google`, or a host.

    The groups are search, social, video, shopping, ai, email, paid, payment and sign-in.
    """
    exact, _, names = _hosts()
    if source in names:
        return names[source]
    known = known_host(source.removeprefix("www."), source) if "." in source else exact.get(source)
    return None if known is None else _group(known.kind)


def _group(kind: str) -> str:
    return _GROUPS.get(kind, kind)
