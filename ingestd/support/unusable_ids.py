"""Unusable ids: texts that clients send as an id although they have no id, such as `null` or `undefined`."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["UNUSABLE", "UnusableIds"]

UNUSABLE: tuple[str, ...] = (
    # No value: JavaScript, Python, PHP, Go, Java, Ruby, .NET, C, Swift, Rust, Perl, R, SQL, spreadsheets
    "null", "undefined", "none", "nil", "nothing", "undef", "nullptr", "$null", "void(0)",
    "(null)", "<null>", "[null]", "(nil)", "<nil>", "[nil]", "(none)", "<none>", "[none]", "[undefined]", "<undefined>",
    ":null", ":nil", ":undefined", "null,null", "undefined,undefined", "undefined undefined", "null null",
    "%!s(<nil>)", "%!d(<nil>)", "%!v(<nil>)", "%!q(<nil>)", "%!x(<nil>)", "%!s(missing)", "%!d(missing)",
    "%!v(missing)", "%!q(missing)", "%!x(missing)", "<no value>", "<invalid value>", "<invalid reflect.value>",
    "optional.empty", "optional.absent()", "optional[null]", "optional(nil)", "optionalint.empty", "optionallong.empty",
    "some(null)", "dbnull", "dbnull.value", "system.dbnull", "nonetype", "nilclass", "<class 'nonetype'>", "<na>",
    "\\n", "#n/a", "#null!", "#ref!", "#value!", "#name?",
    # Objects
    "[object object]", "[object null]", "[object undefined]", "[object array]", "[object promise]", "[object function]",
    "[object asyncfunction]", "[object string]", "[object number]", "[object boolean]", "[object symbol]",
    "[object date]", "[object error]", "[object map]", "[object set]", "[object window]", "[object event]",
    "[object arguments]", "[object generator]", "[object htmlinputelement]", "[object htmldocument]",
    "object", "array", "system.object", "system.object[]", "system.string[]", "system.collections.hashtable",
    # Numbers and truth values
    "nan", "-nan", "+nan", "nan(ind)", "-nan(ind)", "1.#qnan", "-1.#ind", "inf", "-inf", "+inf", "infinity",
    "-infinity", "+infinity", "∞", "-∞", "1.#inf", "-1.#inf", "0", "-0", "+0", "0.0", "-0.0", "0n", "0x0", "0e0",
    "-1", "-1.0", "true", "false",
    # Nobody, and no answer
    "guest", "anonymous", "anon", "anonymoususer", "unknown", "unauthenticated", "not_authenticated", "n/a", "-",
    "not set", "(not set)", "not_set", "(not provided)",
    # Identifiers of nothing: UUID (RFC 9562: nil and max), ULID, ObjectId
    "00000000-0000-0000-0000-000000000000", "{00000000-0000-0000-0000-000000000000}",
    "(00000000-0000-0000-0000-000000000000)", "urn:uuid:00000000-0000-0000-0000-000000000000",
    "00000000000000000000000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "{ffffffff-ffff-ffff-ffff-ffffffffffff}", "ffffffffffffffffffffffffffffffff", "00000000000000000000000000",
    "000000000000000000000000",
)  # fmt: skip
"""The default of `[ids] unusable`. It must contain no real id, because such a visitor or user would be lost."""

_WHITE_SPACE = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_INVISIBLE = "\xad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_QUOTES = "\"'`"
_EDGES = _WHITE_SPACE + _INVISIBLE + _QUOTES


class UnusableIds:
    """The words of `[ids] unusable`: `text in unusable_ids` is true for an id that names nobody.

    Case does not matter, nor do white space, invisible characters and quotes around the text. A text that contains
    nothing else always names nobody.
    """

    __slots__ = ("_longest", "_words")

    def __init__(self, words: Iterable[str] = UNUSABLE) -> None:
        self._words = frozenset(["", *map(_plain, words)])
        self._longest = max(map(len, self._words))

    def __contains__(self, text: str) -> bool:
        # This runs for every event, and nearly every id is usable: the length is the cheapest test.
        text = text.strip(_EDGES)
        return len(text) <= self._longest and text.casefold() in self._words


def _plain(text: str) -> str:
    return text.strip(_EDGES).casefold()
