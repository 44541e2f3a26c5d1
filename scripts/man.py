"""Writes the manual pages in man/ from the parser of the command line; `make man` runs it.

`argparse-manpage` makes a page for each command and a page that lists them. The pages are in git, so that an
installation needs no tool for them. A test compares them with the parser.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from argparse_manpage.manpage import Manpage  # type: ignore[import-untyped]  # the module has no types

from ingestd import RELEASE
from ingestd.cli.main import command_line, defaults

FOLDER = Path(__file__).parents[1] / "man"

EXIT_STATUS = {
    "0": "The command has succeeded.",
    "1": "The command has failed.",
    "2": "The command line is wrong.",
    "75": "The command may succeed later, for example when the store can be reached.",
    "78": "The configuration must be corrected first.",
}
ENVIRONMENT = {
    "INGESTD_CONFIG": "The configuration, if --config names none.",
    "CREDENTIALS_DIRECTORY": "The folder of the secrets that the configuration names as credentials.",
    "RUNTIME_DIRECTORY": "The run directory of the daemon. systemd sets it.",
}
FILES = {
    "./ingestd.toml, /etc/ingestd/ingestd.toml": "The configuration, if neither --config nor INGESTD_CONFIG names one.",
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for left in {*FOLDER.glob("*.1")} - {FOLDER / name for name in wanted}:
        left.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    sys.stdout.write(f"{len(wanted)} pages in {FOLDER}\n")


def pages() -> dict[str, str]:
    """The pages by file name: the commands of ingestd and of its built-in plugins."""
    parser = whole_parser()
    every = [*leaves(parser)]
    see = ".BR ingestd (1)\nhas the exit status of all commands, the environment and the files."
    made = {f"{title(each)}.1": page(each, str(each.description), see_also=see) for each in every}
    for group in groups(parser):
        below = [each for each in every if each.prog.startswith(f"{group.prog} ")]
        made[f"{title(group)}.1"] = overview(group, str(group.description), below, see_also=see)
    texts = {"exit_status": items(EXIT_STATUS), "environment": items(ENVIRONMENT), "files": items(FILES)}
    return {"ingestd.1": overview(parser, "customer-event ingestion for e-commerce", every, **texts), **made}


def whole_parser() -> argparse.ArgumentParser:
    """The parser of `ingestd` with the commands of its built-in plugins."""
    os.environ["COLUMNS"] = "80"  # usage lines are wrapped for the terminal, and a page must not depend on it
    return command_line(defaults()[1]).parser


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for command in action.choices.values():
            yield from leaves(command)
    if not below:
        yield parser


def groups(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all groups of commands."""
    for action in parser._actions:
        for below in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            if any(isinstance(each, argparse._SubParsersAction) for each in below._actions):
                yield below
                yield from groups(below)


def overview(
    whole: argparse.ArgumentParser, description: str, every: list[argparse.ArgumentParser], **sections: str
) -> str:
    """The page of a group, or of all commands. It lists them."""
    usage = whole.format_usage().removeprefix("usage: ").rstrip()
    parser = argparse.ArgumentParser(
        prog=whole.prog, usage=usage, description=whole.description, epilog=whole.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    if whole.prog == "ingestd":
        parser.add_argument("--version", action="version", help="show the version and exit")
    listed = {f"{title(command)}(1)": str(command.description) for command in every}
    return page(parser, description, commands=items(listed), **sections)


def page(parser: argparse.ArgumentParser, description: str, **sections: str) -> str:
    examples = (parser.epilog or "").splitlines()[1:]
    parser.epilog = None  # otherwise the page has the examples as comments too
    made = Manpage(
        parser,
        _data={
            "description": description,
            "project_name": "ingestd",
            "version": RELEASE,
            "manual_title": "ingestd",
            "date": " ",  # the page must not change with the day
        },
    )
    made.prog = title(parser)
    shown = "\n".join([".nf", *(escaped(line.strip()) for line in examples), ".fi"])
    for heading, content in {"examples": shown, **sections}.items():
        made.add_section(heading.replace("_", " "), "=", content)
    return str(made)


def title(parser: argparse.ArgumentParser) -> str:
    return parser.prog.replace(" ", "-")


def items(texts: Mapping[str, str]) -> str:
    return "\n".join(f".TP\n.B {escaped(name)}\n{escaped(text)}" for name, text in texts.items())


def escaped(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    main()
