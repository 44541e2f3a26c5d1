"""`ingestd install-units`: installs the systemd units for one virtual environment.

The last line of every file has a checksum of the lines above it. The checksum distinguishes a unit that someone has
edited from a unit of an older ingestd. Only `--force` overwrites an edited unit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from ingestd.api.errors import CommandError
from ingestd.api.output import write
from ingestd.config import Config
from ingestd.hooks.loader import Plugins

__all__ = ["add_arguments", "install_units"]

_DIRECTORY = Path("/etc/systemd/system")
_PREFIX = Path("/opt/ingestd")  # the environment in the units' source
_OUTGOING = "outgoing.conf"
_STAMP = "# Put in place by `ingestd install-units`; sum of the above: "
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - units see nothing or a private directory there


class _File(NamedTuple):
    path: Path
    text: str
    found: str
    """The state of the installed file: "", "same", "older" or "edited". It is empty if there is no file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory",
        metavar="DIR",
        type=Path,
        default=_DIRECTORY,
        help=f"directory of units; default: {_DIRECTORY}",
    )
    parser.add_argument(
        "--prefix", metavar="DIR", type=Path, default=_PREFIX, help=f"the virtual environment; default: {_PREFIX}"
    )
    parser.add_argument(
        "--outgoing", action="store_true", help="open outgoing connections, for Redis and network sinks"
    )
    parser.add_argument("--force", action="store_true", help="overwrite edited units, and keep them as NAME.edited")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and change nothing")


async def install_units(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Check all files, then write them."""
    prefix: Path = arguments.prefix
    warning = _check_prefix(prefix)
    try:
        wanted = [*_wanted(arguments.directory, prefix, outgoing=arguments.outgoing)]
        edited = [str(each.path) for each in wanted if each.found == "edited"]
        if edited and not arguments.force:
            raise CommandError(
                f"{', '.join(edited)}: edited after its installation, so no unit is changed;"
                " put changes into a drop-in (systemctl edit), or overwrite it with --force"
            )
        if not arguments.dry_run:
            for each in wanted:
                _write(each)
    except (PermissionError, NotADirectoryError, FileNotFoundError) as error:
        raise CommandError(f"{error.filename}: {error.strerror}; run this command as root") from None
    write([*_told(wanted, dry=arguments.dry_run), *warning, *_next_steps(wanted, arguments)])


def _check_prefix(prefix: Path) -> list[str]:
    """Raises `CommandError` without an installed command. Returns a warning if the units cannot reach it."""
    if not re.fullmatch(r"/[A-Za-z0-9/._+-]*", str(prefix)):
        raise CommandError(f"--prefix {prefix}: expected an absolute path of letters, digits and . _ + -")
    command = prefix / "bin" / "ingestd"
    if not os.access(command, os.X_OK):
        raise CommandError(
            f"{command} does not exist or cannot be run: make it with `python3 -m venv {prefix}` and"
            f" `{prefix}/bin/pip install .` in ingestd's source, or name another environment with --prefix"
        )
    for path in (prefix, _interpreter(prefix)):
        if any(path.is_relative_to(hidden) for hidden in _HIDDEN):
            return [f"WARNING: {path} is hidden from the units (ProtectHome=, PrivateTmp=): they will not start"]
    return []


def _interpreter(prefix: Path) -> Path:
    """The directory in which the environment's Python is installed."""
    return (prefix / "bin" / "python").resolve().parents[1]


def _wanted(directory: Path, prefix: Path, *, outgoing: bool) -> Iterator[_File]:
    for source in sorted(files("ingestd.systemd").iterdir(), key=lambda each: each.name):
        drop_in = source.name == _OUTGOING
        if (drop_in and not outgoing) or not source.name.endswith((".service", ".socket", ".conf")):
            continue
        text = source.read_text().replace(f"ExecPaths=/usr {_PREFIX}", f"ExecPaths={_executable(prefix)}")
        text = text.replace(f"={_PREFIX}/", f"={prefix}/")
        path = directory / "ingestd.service.d" / _OUTGOING if drop_in else directory / source.name
        yield _File(path, text := f"{text}\n{_STAMP}{_sum(text)}\n", _found(path, text))


def _executable(prefix: Path) -> str:
    """The directories whose files may run as code: the system, the environment, and a Python outside both."""
    interpreter = _interpreter(prefix)
    own = [] if interpreter.is_relative_to("/usr") or interpreter.is_relative_to(prefix) else [interpreter]
    return " ".join(map(str, ["/usr", prefix, *own]))


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _found(path: Path, text: str) -> str:
    try:
        there = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    above, _, stamp = there.rpartition(f"\n{_STAMP}")
    if there == text:
        return "same"
    return "older" if stamp == f"{_sum(above)}\n" else "edited"


def _write(file: _File) -> None:
    if file.found == "same":
        return
    file.path.parent.mkdir(parents=True, exist_ok=True)
    if file.found == "edited":
        file.path.replace(file.path.with_name(f"{file.path.name}.edited"))
    whole = file.path.with_name(f"{file.path.name}.new")
    whole.write_text(file.text)
    whole.chmod(0o644)
    whole.replace(file.path)


_DONE = {"": "installed", "same": "unchanged", "older": "renewed", "edited": "overwritten"}


def _told(wanted: list[_File], *, dry: bool) -> list[str]:
    return [f"{'would be ' if dry and each.found != 'same' else ''}{_DONE[each.found]}: {each.path}" for each in wanted]


def _next_steps(wanted: list[_File], arguments: argparse.Namespace) -> list[str]:
    if all(each.found == "same" for each in wanted):
        return ["Nothing has changed."]
    return [
        "",
        "Next:",
        '  /etc/ingestd/ingestd.toml  [store] url = "sqlite:///var/lib/ingestd/main/ingestd.db", and the sinks',
        "  /etc/ingestd/credentials/  one file for each { credential = … } in that file, readable only by root",
        "  systemctl daemon-reload",
        "  systemctl enable --now ingestd.service   or, for several daemons on one Redis: ingestd@1 ingestd@2 …",
        f"  {arguments.prefix}/bin/ingestd check",
    ]
