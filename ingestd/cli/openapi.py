"""`ingestd openapi`: the API for callers as an OpenAPI document, with the schemas of the configuration."""

from __future__ import annotations

import argparse
import re

from ingestd.api.output import write_data
from ingestd.config import Config
from ingestd.hooks.loader import Plugins

__all__ = ["add_arguments", "print_openapi"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", type=_parse_server,
        help="the public URL in front of the paths; default: the address of [http] listen",
    )  # fmt: skip


async def print_openapi(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Print what the daemon serves with this configuration."""
    from ingestd.http.openapi import listener_url, make_document, to_json  # here: few commands need it
    from ingestd.validation.validator import Validator

    schemas = Validator.load(config.schemas.directory).sources
    document = make_document(schemas, arguments.server or listener_url(config.http.listen))
    write_data([to_json(document).decode()], end="")


def _parse_server(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", text):
        raise argparse.ArgumentTypeError("expected a URL such as https://events.shop.example")
    return text.rstrip("/")  # the paths begin with a slash
