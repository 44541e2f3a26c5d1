"""An extension: the API for callers as an OpenAPI document, printed by a command and served to operators."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from ingestd.api import hookimpl
from ingestd.cli.command_line import Command, CommandLine

if TYPE_CHECKING:
    from ingestd.http.operators import Operators

__all__ = ["register_commands", "register_routes"]


@hookimpl
def register_routes(operators: Operators) -> None:
    from .served import ServedDocument  # here: commands need none of it

    operators.parts.append(ServedDocument(operators))


@hookimpl
def register_commands(commands: CommandLine) -> None:
    commands.add_all(
        [
            Command(
                "openapi",
                f"{__name__}.document:print_openapi",
                "print the API for callers as an OpenAPI document",
                ["ingestd openapi", "ingestd openapi --server https://events.shop.example"],
                _add_arguments,
            )
        ]
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", metavar="URL", type=_parse_server,
        help="the public URL in front of the paths; default: the address of [http] listen",
    )  # fmt: skip


def _parse_server(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", text):
        raise argparse.ArgumentTypeError("expected a URL such as https://events.shop.example")
    return text.rstrip("/")  # the paths begin with a slash
