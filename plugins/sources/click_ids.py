"""Click ids: the parameters by which ad networks know a click again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

__all__ = ["ClickId", "ClickSource", "click_id_of"]

_LONGEST_ADDRESS = 16_384  # characters
_LONGEST_TYPE = 60
_LONGEST_ID = 512
_PARAMETERS = 500

Types = Mapping[str, tuple[str, str, str | None]]
"""The spelling, source and medium of a click id by its name in lower case."""


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


def click_id_of(campaign: Any, page: Any, types: Types) -> ClickId | None:
    """The click id in `context.campaign`, or else in the query or fragment of `context.page.url`."""
    if isinstance(campaign, dict):
        type_, id_ = campaign.get("click_id_type"), campaign.get("click_id")
        if isinstance(type_, str) and isinstance(id_, str) and type_.strip() and (id_ := _id(id_)):
            type_ = type_.strip()[:_LONGEST_TYPE]
            return ClickId(types[type_.lower()][0] if type_.lower() in types else type_, id_)
    url = page.get("url") if isinstance(page, dict) else None
    if not isinstance(url, str) or "=" not in url:
        return None
    start, _, fragment = url[:_LONGEST_ADDRESS].partition("#")
    found = _in_query(start.partition("?")[2], types)
    return _in_query(fragment.partition("?")[2] or fragment, types) if found is None and fragment else found


def _in_query(query: str, types: Types) -> ClickId | None:
    """Of several click ids, the first in the table: a link of an ad that somebody shares gets an `fbclid` too."""
    found: dict[str, str] = {}
    for parameter in query.split("&", _PARAMETERS)[:_PARAMETERS]:
        name, _, value = parameter.partition("=")
        if not value or len(name) > _LONGEST_TYPE:
            continue
        name = (unquote_plus(name) if "%" in name else name).lower()
        if name in types and (id_ := _id(unquote_plus(value[: 12 * _LONGEST_ID]))):
            found.setdefault(name, id_)
    if not found:
        return None
    first = next(iter(found)) if len(found) == 1 else next(name for name in types if name in found)
    return ClickId(types[first][0], found[first])


def _id(value: str) -> str:
    return value.strip()[:_LONGEST_ID].strip()
