"""Modules that are slow to import are imported only by commands that need them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
