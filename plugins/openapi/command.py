"""`ingestd openapi`: the document with the schemas of the configuration."""

from __future__ import annotations

import argparse

from ingestd.api.output import write_data
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.validation.validator import Validator

from .document import listener_url, make_document, to_json

__all__ = ["print_openapi"]


async def print_openapi(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Print what the daemon serves with this configuration."""
    schemas = Validator.load(config.schemas.directory).sources
    document = make_document(schemas, arguments.server or listener_url(config.http.listen))
    write_data([to_json(document).decode()], end="")
