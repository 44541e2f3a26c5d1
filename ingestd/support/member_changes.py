"""Removes, hashes and renames members of an event or record that JSON pointers name."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from .json_pointers import MemberPointer, change_members

__all__ = ["MemberChanges"]

_SHORTEST_SECRET = 16

_HASH = 64  # digits
_GROWTH = 8  # times: a hash of a shorter member than an eighth of it counts
_SPARE = 2 * 1024  # bytes by which such hashes may make an event larger

_FURTHER: Mapping[str, Sequence[str]] = {
    "/traits": ("/context/traits", "/extra/traits", "/traits/groups/*"),
    "/data/order_id": ("/orderId",),
    "/anonymousId": (
        "/anonymousIds/*", "/touchpoint/anonymousId", "/touchpoints/*/anonymousId", "/ignored/*/anonymousId",
    ),
    "/sessionId": ("/touchpoint/sessionId", "/touchpoints/*/sessionId"),
    "/dispatchId": ("/touchpoint/dispatchId", "/touchpoints/*/dispatchId"),
    "/touchpoint": ("/touchpoints/*",),
}  # fmt: skip
"""Where the same member is, too. SDKs have traits in contexts and groups, attributions repeat the ids of order and
touchpoints and list the credited touchpoint among all, and erasures name all visitors of a person.
"""

_Member = tuple[int, Any]
"""The id of a container of the event, and the name or index of a member."""


class MemberChanges:
    """Changes a JSON object: removes members, then hashes, then renames. All pointers name members as they were."""

    def __init__(
        self,
        *,
        drop: Sequence[MemberPointer],
        hash: Sequence[MemberPointer],
        secret: str | None,
        rename: Mapping[MemberPointer, str] = {},
    ) -> None:
        """Raises `ValueError`, which begins with the name of the option."""
        _check(drop, hash, secret)
        self._drop = [each.tokens for each in _with_further(drop)]
        self._hash = [each.tokens for each in _with_further(hash)]
        # The deepest first, so that no pointer leads through a member that has moved.
        self._rename = sorted(((each.tokens, name) for each, name in rename.items()), key=lambda each: -len(each[0]))
        self._hashes = _Hashes(secret or "")

    def apply(self, value: dict[str, Any]) -> None:
        for tokens in self._drop:
            change_members(value, tokens, _remove)
        if self._hash:
            self._hashes.begin()
            for tokens in self._hash:
                change_members(value, tokens, self._hashes.replace)
        moved: list[tuple[dict[str, Any], str, Any]] = []
        for tokens, name in self._rename:
            change_members(value, tokens, _mover(name, moved))
        for container, name, member in moved:
            container[name] = member


def _check(drop: Sequence[MemberPointer], hash: Sequence[MemberPointer], secret: str | None) -> None:
    for index, pointer in enumerate(hash):
        if pointer in drop:
            raise ValueError(f"hash[{index}]: {pointer} is in drop too; remove it from one of them")
        for before in hash[:index]:
            if pointer.meets(before):  # a member named by both would become the hash of a hash
                raise ValueError(f"hash[{index}]: {pointer} may name the same member as {before}; remove one")
    if hash and secret is None:
        raise ValueError("secret: must be given if hash has a pointer")
    if hash and len(secret or "") < _SHORTEST_SECRET:
        raise ValueError(f"secret: expected at least {_SHORTEST_SECRET} characters")


def _with_further(pointers: Sequence[MemberPointer]) -> Iterator[MemberPointer]:
    """Each pointer, and then the further places of each member."""
    yield from pointers
    for pointer in pointers:
        parts = pointer.split("/")
        for start, places in _FURTHER.items():
            depth = start.count("/") + 1
            if MemberPointer("/".join(parts[:depth])).meets(MemberPointer(start)):
                yield from (MemberPointer("/".join([place, *parts[depth:]])) for place in places)


def _remove(container: Any, key: Any) -> None:
    del container[key]


def _mover(name: str, moved: list[tuple[dict[str, Any], str, Any]]) -> Callable[[Any, Any], None]:
    def move(container: Any, key: Any) -> None:
        if isinstance(container, dict):  # elements of arrays have no names
            moved.append((container, name, container.pop(key)))

    return move


class _Hashes:
    """Replaces members by their hashes. Thousands of digits would become a record of thirty times their size.

    So when hashes of very short members have made an event larger by `_SPARE`, further ones are removed.
    """

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()
        self._spare = 0
        self._hashed: set[_Member] = set()
        """The members of this event that are hashes. Pointers of different places may name the same member."""

    def begin(self) -> None:
        """Begin an event."""
        self._spare = _SPARE
        self._hashed.clear()

    def replace(self, container: Any, name: Any) -> None:
        value, member = container[name], (id(container), name)
        if value is None or member in self._hashed:  # null reveals nothing
            return
        self._hashed.add(member)
        message = _bytes_of(value)
        size = len(message) + (len(name) if isinstance(container, dict) else 0)
        if size * _GROWTH < _HASH:
            self._spare -= _HASH - size * _GROWTH
            if self._spare < 0:
                del container[name]
                return
        container[name] = hmac.digest(self._key, message, "sha256").hex()


def _bytes_of(value: Any) -> bytes:
    """The bytes of a text, or the JSON of another value with the members of objects sorted."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(value, order="deterministic")
