"""The example plugin and the pages for plugin authors, followed step by step without this tree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.sink import Sink
from ingestd.hooks.plugin_validation import check_sink_class
from tests.support.daemon import Daemon

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/ingestd-orders-csv"
PAGE = ROOT / "docs" / "writing-plugins.md"
FREE_PORTS = "--set http.listen=127.0.0.1:0 --set ops.listen=127.0.0.1:0"


class Stranger:
    """A virtual environment with ingestd and the example. This tree is not on its module path."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL"))
            },
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTEST_ADDOPTS": "-p no:cacheprovider -W error",
        }
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)

    def run(self, command: str, folder: Path) -> str:
        """Runs a line of shell, which must succeed, and returns its output."""
        done = subprocess.run(
            ["bash", "-euc", command], cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def stranger(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    made = Stranger(tmp_path_factory.mktemp("environment"))
    # Nothing is compiled: most of the modules of the dependencies are never imported.
    made.run(f"pip install --quiet --no-compile . './{EXAMPLE}[test]'", source)
    return made


def passed(printed: str) -> int:
    found = re.search(r"(\d+) passed", printed)
    assert found is not None, printed
    return int(found[1])


def test_the_example_passes_its_own_tests_where_it_is_installed(stranger: Stranger, source: Path) -> None:
    # The tests do not run beside the module, so they test the installed one.
    assert passed(stranger.run("pytest", source / EXAMPLE / "tests")) > 30


def test_a_daemon_uses_the_example(stranger: Stranger, tmp_path: Path) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text(
        '[http]\nlisten = "127.0.0.1:0"\n[ops]\nlisten = "127.0.0.1:0"\n[store]\nurl = "sqlite:ingestd.db"\n'
        '[logs]\nformat = "text"\n[sinks.books]\ntype = "orders_csv"\nfolder = "orders"\ntimezone = "Europe/Berlin"\n'
    )
    key = json.loads(stranger.run("ingestd keys create --kind public --tenant shop --json", tmp_path))["id"]
    assert "orders_csv" in stranger.run("ingestd plugins list", tmp_path)
    assert "FAULT" not in stranger.run("ingestd check", tmp_path)
    with Daemon(config, command=str(stranger.bin / "ingestd"), environment=stranger.environment) as daemon:
        order = {"key": "Order Completed", "anonymousId": "v", "data": {"order_id": "o-1", "revenue": 40}}
        assert daemon.post("/track", order, key).status == 200
        assert daemon.terminate() == 0
    (file,) = (tmp_path / "orders").glob("orders-*.csv")
    header, line = file.read_text(encoding="utf-8-sig").splitlines()
    assert header.startswith("id,order_id,time,currency,revenue,")
    assert ",o-1," in line


def classes_of_page() -> list[str]:
    """The blocks that show one class, after the section with the files."""
    return re.findall(r"^```python\n(class \w+\(Sink\):\n.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_classes_of_the_page_for_authors_are_sinks() -> None:
    for block in classes_of_page():
        names: dict[str, Any] = {"Sink": Sink}
        exec(block, names)
        (sink_class,) = {each for each in names.values() if isinstance(each, type) and issubclass(each, Sink)} - {Sink}
        check_sink_class("warehouse", sink_class)
        assert sink_class.stable_batches or sink_class.buffering


def test_the_steps_of_the_page_for_authors_work_in_an_empty_folder(stranger: Stranger, tmp_path: Path) -> None:
    """Each block of the page: files are written and commands run. `serve` gets free ports and is stopped afterwards."""
    text = PAGE.read_text()
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    files = dict(re.findall(r"^`([\w.]+)`[^`]*:\n\n```(?:python|toml)\n(.*?)```", text, re.DOTALL | re.MULTILINE))
    commands = [block for language, block in blocks if language == "sh"]
    (tree,) = [block for language, block in blocks if not language]
    assert set(re.findall(r"^  (\S+)$", tree, re.MULTILINE)) == {*files}
    classes = classes_of_page()
    assert len(files) + len(commands) + len(classes) + 1 == len(blocks), "the tests of this page do not cover the block"
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    install, run = commands
    shown = {}
    for line in f"{install}{run}".splitlines():
        began = time.monotonic()
        if line == "ingestd serve":
            config, program = tmp_path / "ingestd.toml", str(stranger.bin / "ingestd")
            config.write_text(config.read_text() + '[http]\nlisten="127.0.0.1:0"\n[ops]\nlisten="127.0.0.1:0"\n')
            with Daemon(config, command=program, environment=stranger.environment) as daemon:
                assert daemon.terminate() == 0
        else:
            shown[line] = stranger.run(line.replace("ingestd check", f"ingestd check {FREE_PORTS}"), tmp_path)
        print(f"{time.monotonic() - began:5.1f} s  {line}")  # noqa: T201 - the time that an author waits
    assert passed(shown["pytest"]) > 15
    assert "ingestd-table 1.0" in shown["ingestd plugins list"]
    assert "warehouse" in shown["ingestd check"]
    assert (tmp_path / "warehouse.db").exists()
