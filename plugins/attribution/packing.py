"""The compact form of a visitor's touchpoints. A session or campaign that several of them share is stored once.

All of them are members of one set. A touchpoint is a member of some forty characters: its position, its event's id and
the numbers of its parts: the session, the campaign and, if it has one, the click id. Each part is a member too, with a
time that no event has. That time holds the part's number, and the day of the last touchpoint that uses the part. So a
part outlives all its touchpoints.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any
from zlib import crc32

import msgspec

from ingestd.api.store import State

from ..sources import ClickId
from .touches import Touch, continues

__all__ = ["add_touch", "last_before", "read_touches"]

_PARTS = 1 << 52
"""The first time of a part, in milliseconds: the year 144,000. The day and the number are added to it."""
_NUMBERS = 1 << 24
_DAY = 86_400_000

_MANY = 32

_DIGITS = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"  # in the order in which text is sorted
_POSITION = 6  # digits; the position comes first, so it orders touchpoints of the same time
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT = 22  # characters of a UUID in base 64
_AS_IT_IS = "!"  # before an id that is not a UUID

_encode = msgspec.json.Encoder().encode
_decode_campaign = msgspec.json.Decoder(list[str | None]).decode
_decode_click = msgspec.json.Decoder(tuple[bool, ClickId]).decode
_FIELDS = 6  # of a campaign, with its dispatch id
_CLICK = "+"  # before a click, which no session and no campaign begins with and has JSON behind
_THEN_CLICK = "==."  # before the number of a click; an earlier version ends reading base 64 at its first two characters


async def add_touch(state: State, key: str, touch: Touch, *, keep: int, since: int, ttl: int) -> Touch | None:
    """Add a touchpoint to the set, unless it continues a run. Of more than `keep`, the first and the newest stay.

    It is not before `since`, from which on touchpoints are remembered. Returns the touchpoint whose run it continues.
    """
    parts = await _parts(state, key)
    wanted = [_session(touch), _campaign(touch), *_click(touch)]
    if touch.session_id is not None and wanted[0] in parts:
        earlier, later = await _neighbours(state, key, touch, parts, since)
        if earlier is not None and continues(touch, earlier):
            return earlier
        for member, following in later:
            if not continues(following, touch):
                break
            await state.pull(key, [member])  # this event began that run, and has come late
    today = _PARTS + state.now // _DAY * _NUMBERS
    # Seldom, because it reads all touchpoints. The event's id is the server's, so no caller can avoid it.
    if len(parts) >= _MANY and crc32(touch.event_id.encode()) % _MANY == 0 and not parts.keys() >= {*wanted}:
        parts = await _tidied(state, key, parts)
    numbers = []
    for text in wanted:
        at = parts.get(text)
        number = _free_number(parts) if at is None else at % _NUMBERS
        numbers.append(_text(number))
        if at is None or at < today:
            parts[text] = today + number
            await state.push(key, _part(number, text), parts[text], keep=_PARTS, ttl=ttl + _DAY)
    session, campaign, *click = numbers
    ids = _THEN_CLICK.join([f"{session}.{campaign}.{_short(touch.event_id)}", *click])
    member = f"{_text(touch.position).rjust(_POSITION, _DIGITS[0])}{ids}"
    await state.push(key, member, touch.at, keep=keep + len(parts), first=True, since=since, ttl=ttl)
    return None


async def last_before(state: State, key: str, touch: Touch, since: int) -> Touch | None:
    """The last touchpoint of the set that is of the same session and before this one."""
    parts = await _parts(state, key)
    return (await _neighbours(state, key, touch, parts, since))[0] if _session(touch) in parts else None


async def _neighbours(
    state: State, key: str, touch: Touch, parts: Mapping[str, int], since: int
) -> tuple[Touch | None, Iterator[tuple[str, Touch]]]:
    """The last touchpoint of the session before this one, and the next ones after it, each after its member."""
    session = f"{_text(parts[_session(touch)] % _NUMBERS)}."
    members = await state.window(key, since, _PARTS - 1)
    members = [each for each in members if each[0].startswith(session, _POSITION)]
    index = bisect_right(members, touch.at, key=itemgetter(1))
    texts = {at % _NUMBERS: text for text, at in parts.items()}
    earlier = _touch(*members[index - 1], texts) if index else None
    return earlier, ((each[0], near) for each in members[index:] if (near := _touch(*each, texts)) is not None)


async def read_touches(state: State, key: str, since: int | None = None) -> list[Touch]:
    """The touchpoints of the set from `since` (milliseconds, inclusive), in order."""
    members = await state.window(key, since, _PARTS - 1)
    parts = {at % _NUMBERS: text for text, at in (await _parts(state, key)).items()} if members else {}
    found = (_touch(member, at, parts) for member, at in members)
    return [touch for touch in found if touch is not None]


async def _parts(state: State, key: str) -> dict[str, int]:
    """All parts and their times."""
    return {member.partition(":")[2]: at for member, at in await state.window(key, _PARTS)}


def _free_number(parts: Mapping[str, int]) -> int:
    """A number that no touchpoint has: the next one, until millions of touchpoints have used up all."""
    used = {each % _NUMBERS for each in parts.values()}
    number = 1 + max(used, default=-1)
    return number if number < _NUMBERS else min({*range(len(used) + 1)} - used)


def _part(number: int, text: str) -> str:
    return f"{_text(number)}:{text}"


async def _tidied(state: State, key: str, parts: Mapping[str, int]) -> dict[str, int]:
    """The parts that touchpoints still use. The others are removed."""
    used = {number for member, _ in await state.window(key, None, _PARTS - 1) for number in _numbers(member)[1]}
    gone = [_part(at % _NUMBERS, text) for text, at in parts.items() if at % _NUMBERS not in used]
    if gone:
        await state.pull(key, gone)
    return {text: at for text, at in parts.items() if at % _NUMBERS in used}


def _numbers(member: str) -> tuple[str, Sequence[int]]:
    """The event's id, and the numbers of the parts."""
    session, campaign, event = member[_POSITION:].split(".", 2)
    event, *click = event.split(_THEN_CLICK)
    return event, [_number(each) for each in (session, campaign, *click)]


def _touch(member: str, at: int, parts: Mapping[int, str]) -> Touch | None:
    """The touchpoint, or None if its parts are gone. Parts live longer, so the touchpoint's own life is over then."""
    event, (session, campaign, *click) = _numbers(member)
    if session not in parts or campaign not in parts:
        return None
    fields: list[Any] = _decode_campaign(parts[campaign])
    fields += [None] * (_FIELDS - len(fields))
    if click and parts.get(click[0], "").startswith(_CLICK):
        # An earlier version does not know of its use. It may have removed it, and given its number to another part.
        is_all, click_id = _decode_click(parts[click[0]].removeprefix(_CLICK))
        fields += ["click" if is_all else None, click_id]
    session_id = parts[session]
    return Touch(_number(member[:_POSITION]), at, _long(event), _long(session_id) if session_id else None, *fields)


def _session(touch: Touch) -> str:
    return "" if touch.session_id is None else _short(touch.session_id)


def _campaign(touch: Touch) -> str:
    fields = [touch.source, touch.medium, touch.name, touch.term, touch.content, touch.dispatch_id]
    while fields[-1] is None:
        fields.pop()
    return _encode(fields).decode()


def _click(touch: Touch) -> Sequence[str]:
    """The click id, with whether source and medium come from it."""
    return [] if touch.click is None else [_CLICK + _encode((touch.named_by == "click", touch.click)).decode()]


def _text(number: int) -> str:
    return (_text(number // 64) if number >= 64 else "") + _DIGITS[number % 64]


def _number(text: str) -> int:
    number = 0
    for digit in text:
        number = number * 64 + _DIGITS.index(digit)
    return number


def _short(identity: str) -> str:
    if _UUID.fullmatch(identity) is None:
        return _AS_IT_IS + identity
    return b2a_base64(bytes.fromhex(identity.replace("-", "")), newline=False)[:_SHORT].decode()


def _long(text: str) -> str:
    if text.startswith(_AS_IT_IS):
        return text[1:]
    digits = a2b_base64(text + "==").hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
