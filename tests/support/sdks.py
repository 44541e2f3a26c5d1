"""SDKs of Segment and RudderStack in programs of their languages, set up with the lines that docs/sdks.md shows."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

__all__ = [
    "MODULES",
    "PATIENCE",
    "PROGRAMS",
    "SERVER_SDKS",
    "Call",
    "Program",
    "ServerSdk",
    "Start",
    "lines_of",
    "sdk_programs",
]

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "sdks.md"
PROGRAMS = _ROOT / "tests" / "sdks" / "programs"
MODULES = _ROOT / "tests" / "sdks" / "node_modules"
PATIENCE = 120.0
"""Seconds for an SDK that waits before it sends again."""

Call = tuple[str, dict[str, Any]]
"""The method of an SDK, and the members of the message."""


def lines_of(heading: str, host: str, key: str, number: int = 0) -> str:
    """A block of lines of docs/sdks.md, with this host and key in place of those in the page."""
    _, found, section = _PAGE.read_text().partition(f"\n### {heading}\n")
    assert found, f"docs/sdks.md has no section {heading}"
    lines: str = re.findall(r"^```\w+\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[number]
    assert "events.example.com" in lines
    assert "KEY" in lines
    return lines.replace("https", "http").replace("events.example.com", host).replace("KEY", key)


@dataclass(frozen=True)
class ServerSdk:
    """An SDK for servers. `package` is its heading in docs/sdks.md."""

    package: str
    library: str
    """The `context.library.name` that it sends."""
    has_category: bool = True
    """Whether its pages and screens may have a category."""

    @property
    def language(self) -> str:
        if self.package.endswith("-go"):
            return "go"
        return "python" if self.package.endswith("-python") else "node"

    def command(self, folder: Path, host: str, key: str) -> list[str]:
        """The command of a program that makes calls with the SDK. It may use the folder, which is empty."""
        if self.language == "go":
            return [_built_by_go(), f"http://{host}", key]
        lines = lines_of(self.package, host, key)
        return _node_program(folder, lines) if self.language == "node" else _python_program(folder, lines)


SERVER_SDKS = (
    ServerSdk("@segment/analytics-node", "@segment/analytics-node"),
    ServerSdk("analytics-node", "analytics-node"),
    ServerSdk("@rudderstack/rudder-sdk-node", "analytics-node"),
    ServerSdk("segment-analytics-python", "analytics-python"),
    ServerSdk("rudder-sdk-python", "analytics-python"),
    ServerSdk("analytics-go", "analytics-go", has_category=False),
)


def _node_program(folder: Path, lines: str) -> list[str]:
    assert MODULES.is_dir(), "the SDKs for Node.js are missing; make tests/sdks/node_modules/installed installs them"
    node = shutil.which("node")
    assert node is not None, "there is no node; scripts/need node nodejs installs it"
    (folder / "node_modules").symlink_to(MODULES)
    main = folder / "main.mjs"
    main.write_text(f"import {{ send }} from '{PROGRAMS / 'node.mjs'}'\n{lines}\nawait send(analytics)\n")
    return [node, str(main)]


def _python_program(folder: Path, lines: str) -> list[str]:
    shutil.copy(PROGRAMS / "calls.py", folder)
    main = folder / "main.py"
    main.write_text(f"from calls import send\n{lines}\nsend(analytics)\n")
    return [sys.executable, str(main)]


@cache
def _built_by_go() -> str:
    """The program takes its host and its key as arguments, so that one build is enough."""
    go = shutil.which("go")
    assert go is not None
    lines = lines_of("analytics-go", "events.example.com", "KEY")
    lines = lines.replace('"http://events.example.com"', "os.Args[1]").replace('"KEY"', "os.Args[2]")
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder)
    shutil.copytree(PROGRAMS / "go", folder, dirs_exist_ok=True)
    (folder / "client.go").write_text(
        'package main\nimport ("os"; "gopkg.in/segmentio/analytics-go.v3")\n'
        f"func newClient() analytics.Client {{\n{lines}\ncheck(err)\nreturn client\n}}\n"
    )
    subprocess.run([go, "build", "-o", "main", "."], cwd=folder, check=True)
    return str(folder / "main")


class Program:
    """A running program: it makes each call as soon as it is told, and ends once its SDK has delivered."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def make(self, calls: Sequence[Call]) -> None:
        """Begin to make the calls, in order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(calls).encode() + b"\n")
        self._process.stdin.flush()

    def end(self) -> list[str]:
        """Wait until the SDK has sent everything; returns the failures that it tells."""
        printed, _ = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0
        failures: list[str] = json.loads(printed.splitlines()[-1])
        return failures

    def close(self) -> None:
        """End the program, if it has not ended by now."""
        self._process.kill()
        self._process.communicate()


Start = Callable[[ServerSdk, str, str], Program]
"""Starts a program with an SDK, for a host and with a key."""


@contextmanager
def sdk_programs(new_folder: Callable[[str], Path]) -> Iterator[Start]:
    """A function that starts programs. They end with the context."""
    with ExitStack() as stack:

        def start(sdk: ServerSdk, host: str, key: str) -> Program:
            program = Program(sdk.command(new_folder("sdk"), host, key))
            stack.callback(program.close)
            return program

        yield start
