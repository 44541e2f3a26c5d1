"""Journeys: the links and touchpoints of visitors and users at a position of the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ingestd.api.privacy import Person
from ingestd.api.store import State, key_digest, state_key

from .arrivals import Referrers
from .packing import add_touch, last_before, read_touches
from .people import CREDITED, USER, VISITOR
from .touches import Touch

__all__ = [
    "LINK",
    "MAX_IGNORED",
    "REFERRERS",
    "TOUCHES",
    "TOUCH_SETS",
    "VISITORS",
    "Candidates",
    "Ignored",
    "Journeys",
    "Limits",
    "forget",
    "linked_user",
    "read_whole",
]

LINK, VISITORS = "attribution-link", "attribution-visitors"
"""Kinds of entries: a visitor's user, and a user's visitors."""
TOUCHES, REFERRERS, WITHOUT = "touches", "touches-referrer", "touches-excluded"
"""The same: a visitor's touchpoints, those of the kind referrer, and excluded ones.

Referrers are apart, so that they displace no other touchpoint, and an earlier version does not take them for campaigns.
"""
TOUCH_SETS = TOUCHES, REFERRERS, WITHOUT

_DAY = 86_400_000
_MARGIN = 30 * _DAY
"""Entries stay this much longer than they count: the clock ends their life, but the journal decides what counts."""
_LIFE = 400 * _DAY
"""How long a link counts after the visitor's last identify request or touchpoint. Strangers can invent users."""
_STEP = 30 * _DAY  # a touchpoint renews a link that is older than this
_PLACES = 1000
"""A user's visitor has the time of its link, times this. What is added to it keeps visitors in the journal's order."""
_FIRST = 10**14
"""Visitors with a smaller number were linked by an earlier version, which kept the position alone."""

MAX_IGNORED = 20
"""Touchpoints of an order that its record lists although they do not count. The newest stay."""
_MAX_WITHOUT = 20  # excluded touchpoints of a visitor that are remembered, for the reason why they do not count
_TOGETHER = 8  # visitors whose touchpoints are in memory together
_encode = msgspec.json.Encoder().encode
_decode_whole = msgspec.json.Decoder(tuple[str, Touch]).decode
_POSITION = 16  # hexadecimal digits


class _Link(NamedTuple):
    user_id: str
    at: int | None
    """The receipt of the visitor's last link. None if an earlier version stored it."""


_decode_link = msgspec.json.Decoder(tuple[str, int]).decode


def _link_of(text: str) -> _Link:
    try:
        return _Link(*_decode_link(text))
    except msgspec.MsgspecError:  # the user's id alone
        return _Link(text, None)


def linked_user(text: str) -> str:
    """The user's id in the entry of a link."""
    return _link_of(text).user_id


class Limits(NamedTuple):
    """Limits of journeys. Times are in milliseconds. Orders up to `late` after their time find all touchpoints."""

    window: int
    late: int
    max_touches: int
    max_visitors: int
    referrers: Referrers = "fallback"

    @property
    def horizon(self) -> int:
        return self.window + self.late


class Ignored(NamedTuple):
    """A known touchpoint that does not count, and the reason."""

    touch: Touch
    anonymous_id: str
    reason: str


class Candidates(NamedTuple):
    """The touchpoints of an order with their visitors, oldest first, and the newest ones that do not count."""

    touches: list[tuple[Touch, str]]
    ignored: list[Ignored]
    left_out: int
    """The number of touchpoints beyond the limit. They lie between the first and the newest."""
    is_fallback: bool = True
    """Whether referrers get credit only if there is nothing else."""

    @property
    def credited(self) -> Sequence[int]:
        """The indices of the touchpoints among which the credit is divided."""
        others = [index for index, (touch, _) in enumerate(self.touches) if touch.named_by != "referrer"]
        return others if others and self.is_fallback else range(len(self.touches))

    def keeping(self, most: int) -> Candidates:
        """The first touchpoint and the newest ones, `most` in all."""
        touches = [*self.touches]
        left_out = _leave_out(touches, most, is_fallback=self.is_fallback)
        return self._replace(touches=touches, left_out=self.left_out + left_out)


class Journeys:
    """Reads and changes links and touchpoints in a transaction. `clock` is the time at the journal's position."""

    def __init__(self, state: State, limits: Limits, clock: int) -> None:
        self._state = state
        self._limits = limits
        self.clock = clock

    async def link(self, tenant: str, anonymous_id: str, user_id: str) -> None:
        """Link the visitor to this user, and unlink it from any other user."""
        before, at = await self._link(tenant, anonymous_id), self.clock
        if before is not None and before.user_id == user_id:
            at = max(at, before.at or 0)
        elif before is not None:
            await self._state.pull(state_key(VISITORS, tenant, before.user_id), [anonymous_id])
        text = _encode((user_id, at)).decode()
        await self._state.put(state_key(LINK, tenant, anonymous_id), text, _LIFE + _MARGIN)
        found = await self._linked(tenant, user_id)
        place = max([at * _PLACES, *(each + 1 for _, each in found[-1:])])
        await self._push(state_key(VISITORS, tenant, user_id), anonymous_id, place)

    async def renew(self, tenant: str, anonymous_id: str) -> None:
        """Let the visitor's link live on, if there is one."""
        link = await self._link(tenant, anonymous_id)
        if link is not None and (link.at is None or _STEP < self.clock - link.at <= _LIFE):
            await self.link(tenant, anonymous_id, link.user_id)

    async def user(self, tenant: str, anonymous_id: str) -> str | None:
        link = await self._link(tenant, anonymous_id)
        return None if link is None or self.clock - (link.at or self.clock) > _LIFE else link.user_id

    async def _link(self, tenant: str, anonymous_id: str) -> _Link | None:
        text = await self._state.get(state_key(LINK, tenant, anonymous_id))
        return None if text is None else _link_of(text)

    async def _push(self, visitors: str, anonymous_id: str, at: int) -> None:
        await self._state.push(visitors, anonymous_id, at, keep=self._limits.max_visitors, ttl=_LIFE + _MARGIN)

    async def _linked(self, tenant: str, user_id: str) -> list[tuple[str, int]]:
        """The visitors whose links to the user count, with their places. The one linked last is at the end."""
        key = state_key(VISITORS, tenant, user_id)
        found = await self._state.window(key)
        if found and found[0][1] < _FIRST:  # give the set of an earlier version its times and its end
            await self._state.delete(key)
            for index, (visitor, at) in enumerate(found):
                await self._push(key, visitor, at if at >= _FIRST else self.clock * _PLACES - len(found) + index)
            found = await self._state.window(key)
        return [each for each in found if each[1] >= (self.clock - _LIFE) * _PLACES]

    async def visitors(self, tenant: str, anonymous_id: str, user_id: str | None) -> list[str]:
        """The visitor, and all visitors that are linked to the user."""
        linked = [] if user_id is None else await self._linked(tenant, user_id)
        return [anonymous_id, *(each for each, _ in linked if each != anonymous_id)]

    async def touch(self, tenant: str, anonymous_id: str, touch: Touch, excluded: str | None) -> Touch | None:
        """Remember a touchpoint, unless it continues a run. `excluded` is the reason why it does not count, or None.

        Returns the touchpoint whose run it continues.
        """
        since, ttl, keep = self.clock - self._limits.horizon, self._limits.horizon + _MARGIN, self._limits.max_touches
        touches, referrers = state_key(TOUCHES, tenant, anonymous_id), state_key(REFERRERS, tenant, anonymous_id)
        if excluded is not None:
            await self._push_whole(state_key(WITHOUT, tenant, anonymous_id), excluded, touch, keep=_MAX_WITHOUT)
        if excluded is not None or touch.at < since:
            return None
        if touch.named_by == "referrer":  # it is the first of its session
            visit = await self._of_session(referrers, touch, since)
            earlier = next((each for _, each in visit if each.order < touch.order), None)
            continued = earlier or await last_before(self._state, touches, touch, since)
        else:
            continued = await add_touch(self._state, touches, touch, keep=keep, since=since, ttl=ttl)
            visit = [] if continued is not None else await self._of_session(referrers, touch, since)
        if continued is None:
            later = [member for member, each in visit if each.order > touch.order]
            if later:
                await self._state.pull(referrers, later)
            if touch.named_by == "referrer":
                await self._push_whole(referrers, touch.named_by, touch, keep=keep)
        return continued

    async def room(self, tenant: str, anonymous_id: str) -> int:
        """At least so many further touchpoints of the visitor displace none."""
        keys = state_key(TOUCHES, tenant, anonymous_id), state_key(REFERRERS, tenant, anonymous_id)
        return self._limits.max_touches - max([len(await self._state.window(key)) for key in keys])

    async def _of_session(self, key: str, touch: Touch, since: int) -> list[tuple[str, Touch]]:
        """The members of a set of whole touchpoints that are of the same session."""
        if touch.session_id is None:
            return []
        members = [member for member, _ in await self._state.window(key, since) if touch.session_id in member]
        found = [(member, _decode_whole(member[_POSITION:])[1]) for member in members]
        return [each for each in found if each[1].session_id == touch.session_id]

    async def _push_whole(self, key: str, reason: str, touch: Touch, *, keep: int) -> None:
        # The position comes first, with a fixed number of digits, so it orders touchpoints of the same time.
        member = f"{touch.position:0{_POSITION}x}{_encode((reason, touch)).decode()}"
        since, ttl = self.clock - self._limits.horizon, self._limits.horizon + _MARGIN
        await self._state.push(key, member, touch.at, keep=keep, first=True, since=since, ttl=ttl)

    async def forget(self, tenant: str, visitors: Sequence[str], user_id: str | None) -> None:
        """Forget the visitors, and the user if one is given. Visitors that now belong to another user stay then."""
        for visitor in visitors:
            linked = await self.user(tenant, visitor)
            if user_id is not None and linked not in {None, user_id}:
                continue
            for kind in (*TOUCH_SETS, LINK, VISITOR, CREDITED):
                await self._state.delete(state_key(kind, tenant, visitor))
            if linked is not None:
                await self._state.pull(state_key(VISITORS, tenant, linked), [visitor])
        if user_id is not None:
            await self._state.delete(state_key(VISITORS, tenant, user_id))
            await self._state.delete(state_key(USER, tenant, user_id))

    async def candidates(self, tenant: str, visitors: Sequence[str], at: int) -> Candidates:
        """The touchpoints for an order at this time."""
        touches: list[tuple[Touch, str]] = []
        ignored: list[Ignored] = []
        left_out = 0
        since, is_fallback = self.clock - self._limits.horizon, self._limits.referrers == "fallback"
        for start in range(0, len(visitors), _TOGETHER):
            group = visitors[start : start + _TOGETHER]
            sets = [[state_key(kind, tenant, visitor) for kind in TOUCH_SETS] for visitor in group]
            await self._state.load(sets=[key for keys in sets for key in keys])
            for visitor, (key, referrers, without) in zip(group, sets, strict=True):
                found = await read_touches(self._state, key, since)
                if self._limits.referrers != "off":
                    found += [touch for _, touch in await read_whole(self._state, referrers, since)]
                for touch in found:
                    if touch.at > at:
                        ignored.append(Ignored(touch, visitor, "after_order"))
                    elif touch.at < at - self._limits.window:
                        ignored.append(Ignored(touch, visitor, "before_window"))
                    else:
                        touches.append((touch, visitor))
                left_out += _leave_out(touches, self._limits.max_touches, is_fallback=is_fallback)
                excluded = await read_whole(self._state, without, max(since, at - self._limits.window), at)
                ignored = _newest([*ignored, *(Ignored(touch, visitor, reason) for reason, touch in excluded)])
            if len(visitors) > _TOGETHER:  # all touchpoints of a hundred visitors would take a hundred megabytes
                self._state.release(sets=[key for keys in sets for key in keys])
        return Candidates(touches, ignored, left_out, is_fallback)


async def read_whole(
    state: State, key: str, since: int | None = None, until: int | None = None
) -> list[tuple[str, Touch]]:
    """A visitor's touchpoints of the kind referrer, or excluded ones, between two times, each after the reason."""
    return [_decode_whole(member[_POSITION:]) for member, _ in await state.window(key, since, until)]


def _leave_out(touches: list[tuple[Touch, str]], most: int, *, is_fallback: bool) -> int:
    """Sort the touchpoints, and keep the first and the newest. Returns the number of removed touchpoints.

    Referrers that get no credit beside others are removed before these.
    """
    touches.sort(key=lambda each: each[0].order)
    excess = max(0, len(touches) - most)
    if excess:
        rest = range(1, len(touches))
        gone = {*sorted(rest, key=lambda index: is_fallback and touches[index][0].named_by != "referrer")[:excess]}
        touches[:] = [each for index, each in enumerate(touches) if index not in gone]
    return excess


def _newest(ignored: list[Ignored]) -> list[Ignored]:
    return sorted(ignored, key=lambda each: each.touch.order)[-MAX_IGNORED:]


async def forget(person: Person, state: State) -> Mapping[str, int]:
    """Delete the touchpoints, links and ids of a user's visitors, or of a single visitor. Returns their numbers."""
    touches = links = ids = 0
    for key in person.visitor_keys(TOUCHES):
        touches += len(await read_touches(state, key))
        await state.delete(key)
    for kind in REFERRERS, WITHOUT:
        for key in person.visitor_keys(kind):
            touches += len(await state.window(key))
            await state.delete(key)
    for key in person.visitor_keys(CREDITED):
        await state.delete(key)
    user = person.user_key(USER)
    for key in (*person.visitor_keys(VISITOR), *([] if user is None else [user])):
        ids += await state.get(key) is not None
        await state.delete(key)
    digests = {*person.visitors}
    for key in person.visitor_keys(LINK):
        user = await state.get(key)
        if user is None:
            continue
        links += 1
        await state.delete(key)
        # A single visitor is removed from its user, who stays. The set holds visitors by name, not by digest.
        visitors = state_key(VISITORS, person.tenant, linked_user(user))
        names = [name for name, _ in await state.window(visitors) if key_digest(person.tenant, name) in digests]
        await state.pull(visitors, names)
    own = person.user_key(VISITORS)
    if own is not None:
        await state.delete(own)
    return {"touches": touches, "journey links": links, "ids of orders": ids}
