"""Payloads made by others, beside the checkout, where there are any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

__all__ = ["SHARED_PAYLOADS", "shared_payloads"]

SHARED_PAYLOADS = Path(__file__).parents[2].parent / "shared" / "payloads"


def shared_payloads() -> list[Any]:
    """An event key and its `data` each, as parameters of a test; none where the folder is absent."""
    cases = []
    for file in sorted(SHARED_PAYLOADS.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            payload = json.loads(line)
            cases.append(pytest.param(payload["event"], payload["properties"], id=f"{file.name}:{number}"))
    return cases
