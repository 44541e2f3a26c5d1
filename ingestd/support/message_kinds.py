"""The kind of a message. Messages that differ only in ids, numbers, addresses or quoted texts have the same kind."""

from __future__ import annotations

import re

__all__ = ["message_kind"]

_LONGEST = 300  # characters of a kind
_LOOKED_AT = 2_000  # characters of a message: the time of some patterns grows with the square of its length

# Names in the configuration are kept: there are few, and `crm1` is not `crm2`.
_NAMES = re.compile(r"(\bsink:[\w.-]+|\bplugin [\w.-]+)")
# An apostrophe inside a word does not begin a quotation.
_QUOTED = re.compile(r"""(?<![\w\\])[bBrRuU]{0,2}(['"`])(?:(?!\1)[^\\]|\\.)*\1(?!\w)|“[^”]*”|«[^»]*»""", re.DOTALL)
_MAIL = re.compile(r"""[^\s@'"<>()\[\],;:=]+@[\w.-]+""")
_WORDS = re.compile(r"\S+")
_RUNS = re.compile(r"[\w.:+%-]+")
_HEX = re.compile(r"(?<![^\W_])[0-9A-Fa-f]{4,}(?![^\W_])")
_IPV6 = re.compile(r"[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}")
_BETWEEN_WORDS = re.compile(r"[\W_]+")


def message_kind(message: str) -> str:
    """The message without its variable parts. Two kinds may be confused now and then, which does no harm."""
    pieces = _NAMES.split(_MAIL.sub("…", _QUOTED.sub("…", message[:_LOOKED_AT])))
    pieces[::2] = [_WORDS.sub(_fold_word, piece) for piece in pieces[::2]]
    # Lists of different lengths are the same kind too.
    return _BETWEEN_WORDS.sub(_join, "".join(pieces))[:_LONGEST]


def _fold_word(match: re.Match[str]) -> str:
    word = match[0]
    if "/" in word or "\\" in word:  # a path, a URL
        return "…"
    return _RUNS.sub(_fold_run, word)


def _fold_run(match: re.Match[str]) -> str:
    run = match[0]
    if any(character.isdigit() for character in run) or _IPV6.fullmatch(run):
        return "…"
    return _HEX.sub("…", run)


def _join(match: re.Match[str]) -> str:
    return " … " if "…" in match[0] else match[0]
