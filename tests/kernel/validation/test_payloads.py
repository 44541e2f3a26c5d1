"""Realistic payloads of shops, checked by the validator, by `jsonschema` and by the table of the contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import BadRequest, SchemaViolation
from ingestd.validation.validator import Validator
from tests.support.event_keys import KEYS, wrong_pointers
from tests.support.payloads import SHARED_PAYLOADS, shared_payloads
from tests.support.reference import Reference

PAYLOADS = Path(__file__).parents[2] / "data" / "payloads"


def violations(validator: Validator, key: str, data: Any) -> list[SchemaViolation]:
    try:
        validator.event({"key": key, "anonymousId": "visitor-1", "data": data})
    except BadRequest as error:
        return list(error.errors)
    return []


@pytest.fixture(scope="module")
def validator() -> Validator:
    return Validator.load()


def test_there_is_a_payload_for_each_key() -> None:
    assert {file.stem for file in PAYLOADS.glob("*.json")} == {key.lower().replace(" ", "_") for key in KEYS}


@pytest.mark.parametrize("key", KEYS)
def test_a_realistic_payload_is_valid(validator: Validator, key: str) -> None:
    file = PAYLOADS / f"{key.lower().replace(' ', '_')}.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    assert violations(validator, key, data) == []
    assert wrong_pointers(key, data) == set()


# A checkout without the folder of these cases has no such tests.
if SHARED_PAYLOADS.is_dir():

    @pytest.mark.parametrize(("key", "data"), shared_payloads())
    def test_a_payload_from_the_wild_is_valid_or_its_faults_are_located_exactly(
        validator: Validator, key: str, data: dict[str, Any]
    ) -> None:
        pointers = {violation.pointer for violation in violations(validator, key, data)}
        assert pointers == wrong_pointers(key, data)
        assert pointers == Reference().data(key, {"data": data})
