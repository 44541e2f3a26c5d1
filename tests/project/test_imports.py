"""Modules that are slow to import are imported only by commands that need them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LONG = {
    "prometheus_client",
    "tornado",
    "jsonschema",
    "referencing",
    "redis",
    "asyncpg",
    "nats",
    "confluent_kafka",
    "re2",
}


def imported(code: str) -> set[str]:
    """The packages that the code imports, directly or not. It runs in a new process."""
    whole = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize(
    "command", ["keys list", "sinks status", "events export", "config show", "plugins list", "partitions show"]
)
def test_a_command_imports_nothing_that_only_the_daemon_needs(tmp_path: Path, command: str) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text('[store]\nurl = "sqlite:ingestd.db"\n[sinks.archive]\ntype = "jsonl"\npath = "archive.jsonl"\n')
    run = "from ingestd.__main__ import main\nassert main() == 0"
    found = imported(f"sys.argv = {['ingestd', *command.split(), '--config', str(config)]}\n{run}")
    assert "ingestd" in found
    assert not found & LONG


def test_built_in_schemas_need_no_jsonschema() -> None:
    found = imported("from ingestd.validation.validator import Validator\nValidator.load()")
    assert "jsonschema_rs" in found
    assert not found & {"jsonschema", "referencing"}


@pytest.mark.long
def test_each_module_can_be_the_first_to_be_imported() -> None:
    # In `make test`, test_layers.py finds circles of imports without an import.
    paths = [
        path for folder in ("ingestd", "plugins", "testing", "clients/python") for path in (ROOT / folder).rglob("*.py")
    ]
    names = sorted({_name(path.relative_to(ROOT)) for path in paths})
    done = subprocess.run([sys.executable, "-c", _EACH_FIRST, *names], stderr=subprocess.PIPE, text=True, check=False)
    assert not done.stderr


def _name(path: Path) -> str:
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    if name.startswith(("plugins", "testing")):
        return f"ingestd.{name}"
    return name.replace("clients.python", "ingestd.client")


_EACH_FIRST = """
import importlib, os, sys
import aiosqlite, asyncpg, confluent_kafka, jsonschema, nats, prometheus_client, redis.asyncio, tornado.httpserver
for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    os.wait()
"""
"""A process that has imported other packages, and forks for each module."""
