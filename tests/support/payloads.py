"""Payloads from other sources, in a folder beside the checkout that may be missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

__all__ = ["SHARED_PAYLOADS", "shared_payloads"]

SHARED_PAYLOADS = Path(__file__).parents[2].parent / "shared" / "payloads"


def shared_payloads() -> list[Any]:
    """Event keys with their `data` as parameters of a test. There are none without the folder."""
    cases = []
    for file in sorted(SHARED_PAYLOADS.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            payload = json.loads(line)
            cases.append(pytest.param(payload["event"], payload["properties"], id=f"{file.name}:{number}"))
    return cases
