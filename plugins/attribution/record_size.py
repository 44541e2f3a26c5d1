"""Bounds of derived records, and the short forms of records that would exceed them.

Callers choose the texts of touchpoints and ids. Without bounds, a small order would repeat megabytes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from .touches import CAMPAIGN_FIELDS

__all__ = [
    "MAX_ATTRIBUTION",
    "MAX_CREDITED",
    "MAX_NAMED",
    "MAX_ORDER",
    "MAX_PUBLIC_REVERSAL",
    "MAX_REVERSAL",
    "bounded",
    "encode",
    "fitting",
    "recorded_id",
    "texts_of",
    "user_id",
]

MAX_ORDER = 64 << 10
"""Bytes of an order's attribution, its mark and the rows that it adds to rollups."""
MAX_ATTRIBUTION = 56 << 10
MAX_REVERSAL = 5000
MAX_PUBLIC_REVERSAL = 3000
"""The same for a refund or cancellation of a public key: a stranger can send many small ones."""
MAX_CREDITED = 1 << 10
"""Bytes of an order's touchpoint that the state keeps for its reversals."""
MAX_NAMED = 12
"""Touchpoints of an order whose ids its mark keeps, and whose credits each reversal repeats for all models."""
_MAX_TOUCHPOINT = 4 << 10  # bytes of `touchpoint` in a shortened attribution
_MAX_ID = 256  # bytes of an order id or user id in JSON
_SHORT = _MAX_ID // 6  # so many characters never take more bytes, because JSON needs at most six for one
_IDS = ("sessionId", "dispatchId", "clickId")
"""Ids that `ingestd forget` removes by the visitor beside them. So none stays without the visitor."""
_NO_TEXTS = dict.fromkeys((*CAMPAIGN_FIELDS, "dispatchId", "kind", "channel"))
_ID = 36  # characters of an event id
_KEPT = 32  # characters of a longer order id
_DECIMALS = 12  # of weights in a shortened attribution, unless reversals repeat them

encode = msgspec.json.Encoder().encode


def recorded_id(order_id: str | None) -> str | None:
    """The order id in records: as sent, or the beginning of a very long one with a digest of all."""
    if order_id is None or len(order_id) <= _SHORT or len(encode(order_id)) <= _MAX_ID:
        return order_id
    return f"{order_id[:_KEPT]}…{blake2b(order_id.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def user_id(given: str | None) -> str | None:
    """The user id in records. None if it is longer than any user id of a shop."""
    return given if given is None or len(given) <= _SHORT or len(encode(given)) <= _MAX_ID else None


def bounded(touchpoint: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The touchpoint in at most `most` bytes, if necessary without its ids and with shorter texts.

    It may have been bounded before.
    """
    found = dict(touchpoint)
    if len(encode(found)) > most:
        found.pop("anonymousId", None)
        found |= {name: None for name in _IDS if name in found}
    for length in 64, 16:
        if len(encode(found)) <= most:
            return found
        found |= {name: text[:length] for name, text in found.items() if name in CAMPAIGN_FIELDS and text}
    return found if len(encode(found)) <= most else {name: found[name] for name in ("eventId", "at") if name in found}


def fitting(body: dict[str, Any], weights: Sequence[float]) -> bytes:
    """The attribution in JSON, in the short form if it would be larger than `MAX_ATTRIBUTION`.

    `weights` are the shares of its touchpoints by the credited model.
    """
    if sum(map(_least, body["touchpoints"])) <= MAX_ATTRIBUTION:
        text = encode(body)
        if len(text) <= MAX_ATTRIBUTION:
            return text
    return encode(_shortened(body, weights))


def _least(touchpoint: Mapping[str, Any]) -> int:
    """A lower bound of its size."""
    return sum(map(len, filter(None, touchpoint.values()))) if "sameAs" not in touchpoint else 0


def _shortened(body: Mapping[str, Any], weights: Sequence[float]) -> dict[str, Any]:
    """The attribution with touchpoints in short forms, as long as there is room. It may still be too large.

    Touchpoints with large shares come first, and the newest of equal ones. Each campaign is written once, in the
    touchpoint that comes first.
    """
    whole = body["touchpoints"]
    forms: list[dict[str, Any]] = [{"eventId": each["eventId"]} for each in whole]
    decimals = _DECIMALS if len(forms) > MAX_NAMED else None
    found = {
        **body,
        "touchpoint": body["touchpoint"] and bounded(body["touchpoint"], _MAX_TOUCHPOINT),
        "credits": {
            model: [each if decimals is None else each | {"weight": round(each["weight"], decimals)} for each in shares]
            for model, shares in body["credits"].items()
        },
        "touchpoints": forms,
        "ignored": [{name: each[name] for name in ("eventId", "at", "reason")} for each in body["ignored"]],
        "shortened": len(forms),
    }
    room = MAX_ATTRIBUTION - len(encode(found))
    order = sorted(range(len(whole)), key=lambda index: (-weights[index], -index))
    campaigns: dict[tuple[Any, ...], int] = {}

    def replace(index: int, form: dict[str, Any]) -> bool:
        nonlocal room
        if _least(form) - _ID > room:  # much cheaper than to encode texts that are far too long
            return False
        cost = len(encode(form)) - len(encode(forms[index]))
        if cost > room:
            return False
        room -= cost
        forms[index] = form
        return True

    for index in order:
        texts = {name: whole[index][name] for name in CAMPAIGN_FIELDS if whole[index][name] is not None}
        key = whole[index]["kind"], *texts.items()
        texts = {"sameAs": campaigns[key]} if key in campaigns else texts or {"kind": whole[index]["kind"]}
        if replace(index, forms[index] | texts):
            campaigns.setdefault(key, index)
    for index in order:
        if len(forms[index]) > 1 and "sameAs" not in forms[index]:
            replace(index, forms[index] | {name: whole[index][name] for name in ("kind", "channel")})
    for index in order:
        if not replace(index, whole[index]):
            break
        found["shortened"] -= 1
    return found


def texts_of(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """The event id and the texts of each touchpoint of an attribution, None if they are not in the record."""
    for each in body["touchpoints"]:
        texts = body["touchpoints"][each["sameAs"]] if "sameAs" in each else each
        if len(texts) == 1 and body["touchpoint"]["eventId"] == each["eventId"]:
            texts = body["touchpoint"]
        yield each["eventId"], {**_NO_TEXTS, **texts} if len(texts) > 1 else None
