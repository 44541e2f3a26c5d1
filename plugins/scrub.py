"""Removes or hashes members of events and identify requests before they are stored."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError
from ingestd.api.events import Event
from ingestd.api.options import Options as BaseOptions
from ingestd.api.options import Secret

from .json_pointers import Change, MemberPointer, change_members

__all__ = ["ScrubPlugin"]

_SHORTEST_SECRET = 16

_HASH = 64  # digits
_GROWTH = 8  # times: a hash of a shorter member than an eighth of it counts
_SPARE = 2 * 1024  # bytes by which such hashes may make an event larger

_OF_TRAITS = ("/context/traits", "/extra/traits", "/traits/groups/*")
"""Where SDKs have traits, too: of any event in its context, of a message that is no identify request, and of groups."""

_Member = tuple[int, Any]
"""The id of a container of the event, and the name or index of a member."""

_Rule = tuple[str, tuple[str, ...], Change]
"""A field of the event, the pointer's tokens in it, and the change of the members that they name."""


class ScrubPlugin:
    """Off unless a pointer is given. Only then does it have the hook `prepare`, so it slows no event while off."""

    class Options(BaseOptions):
        drop: tuple[MemberPointer, ...] = ()
        hash: tuple[MemberPointer, ...] = ()
        secret: Secret | None = None

    def __init__(self, options: Options) -> None:
        for index, pointer in enumerate(options.hash):
            if pointer in options.drop:
                raise ConfigError(f"plugins.scrub.hash[{index}]: {pointer} is in drop too; remove it from one of them")
            for before in options.hash[:index]:
                if pointer.meets(before):  # a member named by both would become the hash of a hash
                    raise ConfigError(
                        f"plugins.scrub.hash[{index}]: {pointer} may name the same member as {before}; remove one"
                    )
        rules = _rules(options.drop, _drop)
        if options.hash:
            if options.secret is None:
                raise ConfigError("plugins.scrub.secret: must be given if hash has a pointer")
            if len(options.secret) < _SHORTEST_SECRET:
                raise ConfigError(f"plugins.scrub.secret: expected at least {_SHORTEST_SECRET} characters")
            hashes = _Hashes(options.secret)
            rules += _rules(options.hash, hashes.replace)
            self.prepare = hookimpl(_make_prepare(rules, hashes.begin))
        elif rules:
            self.prepare = hookimpl(_make_prepare(rules))

    @hookimpl
    def take_over(self) -> None:
        """Nothing to take over: the options make all rules."""


def _rules(pointers: Sequence[MemberPointer], change: Change) -> list[_Rule]:
    """A rule for each pointer, and then for the further places of each trait."""
    further = [
        MemberPointer(place + pointer.removeprefix("/traits"))
        for pointer in pointers
        if pointer.root == "traits"
        for place in _OF_TRAITS
    ]
    return [(pointer.root, pointer.tokens, change) for pointer in [*pointers, *further]]


def _make_prepare(rules: Sequence[_Rule], begin: Callable[[], None] | None = None) -> Callable[[Event], None]:
    def prepare(event: Event) -> None:
        if begin is not None:
            begin()
        for field, tokens, change in rules:
            change_members(getattr(event, field), tokens, change)

    return prepare


def _drop(container: Any, key: Any) -> None:
    del container[key]


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
