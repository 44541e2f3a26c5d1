"""The part of a caller's data that the operators' page shows: all of it, its shape, or nothing.

A shape has names and types, and no values. A caller may put values into names as well, so a shape has only the names
that the schemas or ingestd itself give.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ingestd.api.errors import Refused
from ingestd.config import Config, ShowData
from ingestd.support.terminal import printable
from ingestd.validation.faults import is_value_free
from ingestd.validation.schema_files import SchemaFile
from ingestd.validation.schema_places import ITEM, UNDECLARED, declared_names
from ingestd.validation.validator import Validator

__all__ = ["Disclosure", "Names", "disclosure_of", "shortened"]

_MOST_ITEMS = 3  # of an array
_NOT_SHOWN = "(not shown)"

_OWN_NAMES = frozenset([
    "ip", "userAgent", "bot", "referrer", "title", "locale", "timezone", "viewport", "width", "height",
    "term", "content", "click_id", "click_id_type",
])  # fmt: skip
"""Names that plugins, intakes and the browser client give, and that no schema declares."""

_GIVEN = frozenset(["id", "type", "tenant", "endpoint", "signed", "receivedAt", "sessionIsNew", "linked", "schema"])
"""The members of a record whose values the daemon gives."""

_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}


class Disclosure:
    """Shows callers' data as `[ops] show_data` asks for it. `files` are the schemas in force."""

    def __init__(self, level: ShowData, files: Iterable[SchemaFile], keys: Collection[str]) -> None:
        self.level = level
        self.keys = frozenset(keys)
        self._names = declared_names(file.schema for file in files) | _OWN_NAMES
        self._secret = secrets.token_bytes(16)

    def __eq__(self, other: object) -> bool:
        """Whether both show the same, except for pseudonyms."""
        return isinstance(other, Disclosure) and self._rules() == other._rules()

    def __hash__(self) -> int:
        return hash(self._rules())

    def _rules(self) -> tuple[object, ...]:
        return self.level, self.keys, self._names

    def pseudonym(self, value: str) -> str:
        """Stands for an id as long as the daemon runs. Only equal ids have equal ones, but for rare accidents."""
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), key=self._secret, digest_size=4)
        return f"#{digest.hexdigest()}"

    def record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The shape of a record."""
        return {name: self._member(name, value) for name, value in record.items()}

    def _member(self, name: str, value: Any) -> Any:
        if name in _GIVEN or (name == "key" and value in self.keys):
            return value
        return self.shape(value)

    def shape(self, value: Any) -> Any:
        """The names and types of a JSON value."""
        if isinstance(value, dict):
            shown = {name: self.shape(member) for name, member in value.items() if name in self._names}
            rest = len(value) - len(shown)
            return shown | ({UNDECLARED: f"{rest} member{'s' * (rest != 1)}"} if rest else {})
        if isinstance(value, list):
            items = [self.shape(item) for item in value[:_MOST_ITEMS]]
            return items + ([f"{len(value) - _MOST_ITEMS} more"] if len(value) > _MOST_ITEMS else [])
        return _TYPES[type(value)]

    def pointer(self, pointer: str) -> str:
        """A JSON pointer without names that a caller has chosen."""
        return "/".join(self._token(token) for token in pointer.split("/"))

    def _token(self, token: str) -> str:
        name = token.replace("~1", "/").replace("~0", "~")
        if not token or name in self._names:
            return token
        return ITEM if re.fullmatch("[0-9]+", token) else UNDECLARED

    def problem(self, refused: Refused) -> dict[str, Any]:
        """The problem of a refused event without its detail, which may quote the event."""
        shown: dict[str, Any] = {"title": refused.title, "status": refused.status, "code": refused.code}
        if refused.errors:
            shown["errors"] = [
                {"pointer": self.pointer(error.pointer), "message": self.message(error.message) or _NOT_SHOWN}
                for error in refused.errors
            ]
        return shown

    @staticmethod
    def message(message: str) -> str:
        """A message about a fault; empty if it may quote the event."""
        return message if is_value_free(message) else ""


def disclosure_of(config: Config, validator: Validator) -> Disclosure:
    return Disclosure(config.ops.show_data, validator.sources, validator.keys)


_LONGEST = 200  # characters of a text that a caller chose


def shortened(text: str) -> str:
    """The text for a page: without invisible characters, and cut."""
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class Names:
    """Names ids by their kind and a pseudonym, such as `visitor #1f3a09bc`. The ids that a viewer has typed are shown.

    Live events have the same pseudonyms.
    """

    def __init__(self, typed: Collection[str], disclosure: Disclosure) -> None:
        self._typed = typed
        self._disclosure = disclosure

    @property
    def hide(self) -> bool:
        """Whether ids and free texts of callers are hidden."""
        return self._disclosure.level != "all"

    def name(self, kind: str, value: str | None) -> str | None:
        """The id itself, or its name; None for no id."""
        if value is None:
            return None
        if not self.hide or value in self._typed:
            return shortened(value)
        return f"{kind} {self._disclosure.pseudonym(value)}"
