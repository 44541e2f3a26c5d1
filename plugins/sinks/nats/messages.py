"""Messages to publish, and their subjects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Message", "Subject"]

_PLACEHOLDER = re.compile(r"\{(type|tenant|key)\}")
_UNSAFE = re.compile(r"[\s.*>$\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST = 100  # characters of a token: servers accept lines of up to 4096 bytes


class Subject:
    """A template for subjects. Raises `ValueError`."""

    def __init__(self, template: str) -> None:
        text = _PLACEHOLDER.sub("x", template)
        if "{" in text or "}" in text:
            raise ValueError(f"expected no {{}} except {{type}}, {{tenant}} and {{key}}, got {template!r}")
        if not all(text.split(".")) or re.search(r"[\s*>\x00-\x1f\x7f]", text):
            raise ValueError(f"expected tokens separated by dots, without spaces, * and >, got {template!r}")
        if text.startswith(("$", "_INBOX.")):
            raise ValueError(f"expected a subject that NATS does not reserve, got {template!r}")
        if len(text.encode()) > 1000:
            raise ValueError("expected at most 1000 bytes")
        self._template = template
        self.pattern = ".".join("*" if _PLACEHOLDER.search(each) else each for each in template.split("."))
        """The subject with wildcards that matches all subjects of the template."""

    def of(self, value: Mapping[str, Any]) -> str:
        """The subject of a record. `_` replaces missing values and characters that a subject cannot have."""
        return _PLACEHOLDER.sub(
            lambda match: _UNSAFE.sub("_", str(value.get(match[1]) or "")[:_LONGEST]) or "_", self._template
        )

    def may_be(self, subject: str) -> bool:
        """Whether `subject` of a stream, which may have wildcards, matches some subjects of the template."""
        ours, theirs = self.pattern.split("."), subject.split(".")
        for our, their in zip(ours, theirs, strict=False):
            if their == ">":
                return True
            if our != their and "*" not in {our, their}:
                return False
        return len(ours) == len(theirs)


class Message(NamedTuple):
    subject: str
    body: bytes
    headers: dict[str, str] | None = None

    @property
    def size(self) -> int:
        """The size in bytes as the server counts it."""
        lines = [f"{name}: {value}\r\n" for name, value in (self.headers or {}).items()]
        return len("".join(["NATS/1.0\r\n", *lines, "\r\n"]).encode()) + len(self.body)
