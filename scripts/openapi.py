"""Writes docs/openapi.json, the OpenAPI document with the built-in schemas; `make openapi` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from ingestd import RELEASE
from ingestd.config import HttpOptions
from ingestd.plugins.openapi.document import listener_url, make_document, to_json
from ingestd.validation.schema_files import read_schemas

FILE = Path(__file__).parents[1] / "docs" / "openapi.json"


def text() -> str:
    """What `ingestd openapi` prints with the default configuration, with the version of the newest release."""
    return to_json(make_document(read_schemas(None), listener_url(HttpOptions().listen), RELEASE)).decode()


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE}\n")
