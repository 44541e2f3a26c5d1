"""The option `topic`: the topic of each record."""

from __future__ import annotations

import re

__all__ = ["TopicTemplate"]

_PLACEHOLDER = re.compile(r"\{(type|tenant)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST = 249  # characters of a topic


class TopicTemplate:
    """A template for topics. Raises `ValueError`."""

    def __init__(self, template: str) -> None:
        text = _PLACEHOLDER.sub("x", template)
        if "{" in text or "}" in text:
            raise ValueError(f"expected no {{}} except {{type}} and {{tenant}}, got {template!r}")
        if _UNSAFE.search(text) or text in {"", ".", ".."} or len(text) > _LONGEST:
            raise ValueError(f"expected 1 to {_LONGEST} letters, digits, and . _ -, got {template!r}")
        self._template = template
        self.name = template if text == template else None
        """The only topic, or None if there may be several."""

    def of(self, type_: str, tenant: str | None) -> str:
        """The topic of a record. `_` replaces a missing tenant and characters that a topic cannot have."""
        if self.name is not None:
            return self.name
        values = {"type": type_, "tenant": tenant}
        topic = _PLACEHOLDER.sub(lambda match: _UNSAFE.sub("_", values[match[1]] or "") or "_", self._template)
        return topic[:_LONGEST] if topic not in {".", ".."} else "_"
