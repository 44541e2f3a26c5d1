"""Checks the messages of an intake as they were sent, before they are translated."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from ingestd.api.errors import ConfigError
from ingestd.api.intake import Intake

from .fault_budget import FaultBudget
from .faults import faults_of, first_fault_of
from .schema_files import DRAFT

__all__ = ["PayloadSchemas"]

_CODE = "invalid_data"


class PayloadSchemas:
    """The `schemas` of an intake."""

    def __init__(self, intake: Intake) -> None:
        """Raises `ConfigError` for a schema that cannot be compiled."""
        self._compiled: dict[str, jsonschema_rs.Validator] = {}
        for name, schema in intake.schemas.items():
            try:
                self._compiled[name] = jsonschema_rs.Draft202012Validator({"$schema": DRAFT, **schema}, offline=True)
            except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
                where = f"the schema {name} of the intake {intake.endpoint.value}"
                raise ConfigError(f"{where} cannot be compiled: {error.message}") from error

    def check(self, name: str, payload: dict[str, Any]) -> None:
        """Raise `BadRequest` with the faults of a payload."""
        compiled = self._compiled[name]
        if compiled.is_valid(payload):
            return
        told = faults_of([compiled], payload, FaultBudget(), code=_CODE)
        raise told or first_fault_of(compiled, payload, code=_CODE)
