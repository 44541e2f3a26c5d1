"""The report of `ingestd check`: a page or a JSON object with the results, and their exit code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ingestd.api.check_result import CheckResult
from ingestd.api.errors import ConfigError, IngestdError, Unavailable
from ingestd.api.options import Options, Secret, Url
from ingestd.support.masking import mask
from ingestd.support.terminal import printable, table

__all__ = ["Report"]

_MARKS = {"ok": "", "warning": "WARNING: ", "unavailable": "FAULT: ", "broken": "FAULT: "}


class Report:
    """Results by group, in the order of their addition, with masked secrets."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._groups: dict[str, list[CheckResult]] = {}
        self._masks: dict[str, str] = {}

    def hide(self, options: object) -> None:
        """Mask the secrets among these options in later results: errors may quote them."""
        for secret in _secrets(options):
            self._masks[secret] = secret.masked
            if isinstance(secret, Url) and (password := urlsplit(secret).password):
                self._masks[password] = "***"

    def add(self, group: str, findings: Iterable[CheckResult]) -> None:
        found = self._groups.setdefault(group, [])
        for each in findings:
            text = printable(" ".join(mask(each.text, self._masks).split()))
            facts = {
                name: mask(fact, self._masks) if isinstance(fact, str) else fact for name, fact in each.facts.items()
            }
            found.append(each._replace(text=text, facts=facts))

    @property
    def error(self) -> IngestdError | None:
        """The error to raise: `ConfigError` if any part is broken, `Unavailable` if all faults may pass."""
        faults = self._with("broken", "unavailable")
        if not faults:
            return None
        what = "; ".join(faults)
        return ConfigError(what) if self._with("broken") else Unavailable(what)

    @property
    def exit_code(self) -> int:
        """The exit code of `ingestd` for `error`."""
        if self._with("broken"):
            return os.EX_CONFIG
        return os.EX_TEMPFAIL if self._with("unavailable") else os.EX_OK

    def lines(self) -> list[str]:
        """The page: one line for each result with its group, name and text in columns."""
        rows = [
            ("" if number else group, each.name, f"{_MARKS[each.status]}{each.text}")
            for group, found in self._groups.items()
            for number, each in enumerate(found)
        ]
        return [f"ingestd check of {self._source}", *table(rows), self._verdict()]

    def facts(self) -> dict[str, Any]:
        """The JSON object: the verdict, and a list of results for each group."""
        groups = {
            group: [{"name": each.name, "status": each.status, "text": each.text, **each.facts} for each in found]
            for group, found in self._groups.items()
        }
        head = {
            "configuration": self._source,
            "exitCode": self.exit_code,
            "faults": self._with("broken", "unavailable"),
            "warnings": self._with("warning"),
        }
        return {**head, **groups}

    def _verdict(self) -> str:
        faults, warnings = len(self._with("broken", "unavailable")), len(self._with("warning"))
        if not faults and not warnings:
            return "all is well"
        told = [
            f"{count} {what}{'s' if count > 1 else ''}" for count, what in ((faults, "fault"), (warnings, "warning"))
        ]
        return f"{', '.join(text for text in told if not text.startswith('0'))}: exit {self.exit_code}"

    def _with(self, *statuses: str) -> list[str]:
        return [
            each.text if group == each.name else f"{group}: {each.name}: {each.text}"
            for group, found in self._groups.items()
            for each in found
            if each.status in statuses
        ]


def _secrets(value: object) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, Options):
        for name in value.__struct_fields__:
            yield from _secrets(getattr(value, name))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _secrets(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _secrets(each)
