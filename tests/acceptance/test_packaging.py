"""ingestd installed from a wheel in another folder, the example plugin, and the pages for plugin authors."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.sink import Sink
from ingestd.hooks.plugin_validation import check_sink_class
from tests.support.daemon import Daemon

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/ingestd-orders-csv"
PAGE = ROOT / "docs" / "writing-plugins.md"
CONTRACT = ROOT / "docs" / "sink-contract.md"
FREE_PORTS = "--set http.listen=127.0.0.1:0 --set ops.listen=127.0.0.1:0"
SHIPPED = {
    ".py", ".json", ".toml", ".yml", ".sql", ".csv", ".lua", ".typed", ".html", ".css", ".js", ".txt", ".service",
    ".socket", ".conf", ".ts",
}  # fmt: skip


class Stranger:
    """A virtual environment. This tree is not on its module path."""

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
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        # Like an own pip, whose installation would take seconds. `make test` has installed uv, which does the same in
        # half of the time: test_dist.py installs with pip.
        uv = Path(sys.executable).with_name("uv")
        command = f"{uv} pip" if uv.exists() else f"{sys.executable} -m pip"
        pip = self.bin / "pip"
        pip.write_text(f'#!/bin/sh\nexec {command} "$@" --python {self.bin / "python"}\n')
        pip.chmod(0o755)

    def run(self, command: str, folder: Path) -> str:
        """Runs a line of shell, which must succeed, and returns its output."""
        done = subprocess.run(
            ["bash", "-euc", command], cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def run(*command: str | Path, folder: Path) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def version(source: Path) -> str:
    """The version of the source, one commit behind the tag of a release. An earlier build has left a module there."""
    author = ["-c", "user.name=test", "-c", "user.email=test@shop.example"]
    for step in ("init", "add .", "commit --message release", "tag v9.8.7", "commit --message change --allow-empty"):
        run("git", *author, *step.split(), folder=source)
    (source / "build" / "lib" / "ingestd").mkdir(parents=True)
    (source / "build" / "lib" / "ingestd" / "gone.py").touch()
    return f"9.8.8.dev1+g{run('git', 'rev-parse', '--short', 'HEAD', folder=source)}"


@pytest.fixture(scope="module")
def wheel(source: Path, version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "pip", "--quiet", "wheel")
    subprocess.run([*command, "--no-build-isolation", "--no-deps", "-w", folder, source], check=True)
    return folder / f"ingestd-{version}-py3-none-any.whl"


@pytest.fixture(scope="module")
def stranger(source: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """An environment with ingestd and the example."""
    made = Stranger(tmp_path_factory.mktemp("environment"))
    # Nothing is compiled: most of the modules of the dependencies are never imported.
    made.run(f"pip install --quiet --no-compile {wheel} './{EXAMPLE}[test]'", source)
    return made


@pytest.fixture(params=["wheel", *(pytest.param(kind, marks=pytest.mark.long) for kind in (".", "--editable ."))])
def installed(request: pytest.FixtureRequest, stranger: Stranger, source: Path) -> Stranger:
    if request.param != "wheel":
        stranger.run(f"pip install --quiet --no-compile --no-deps --force-reinstall {request.param}", source)
    return stranger


def test_an_installed_ingestd_stores_an_event(installed: Stranger, version: str, tmp_path: Path) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text(
        '[http]\nlisten = "127.0.0.1:0"\n[ops]\nlisten = "127.0.0.1:0"\n[store]\nurl = "sqlite:ingestd.db"\n'
    )
    assert installed.run("ingestd --version", tmp_path) == f"ingestd {version}\n"
    key = json.loads(installed.run("ingestd keys create --kind public --tenant shop --json", tmp_path))["id"]
    with Daemon(config, command=str(installed.bin / "ingestd"), environment=installed.environment) as daemon:
        body = {"key": "Page View", "anonymousId": "v", "data": {}}
        assert daemon.post("/track", body, key).status == 200
        assert daemon.terminate() == 0
    assert json.loads(installed.run("ingestd events export", tmp_path))["key"] == "Page View"
    assert "complete " in installed.run("ingestd completion bash", tmp_path)


def shipped(root: Path) -> set[str]:
    """The files of a tree that belong into a wheel, by their places in it."""
    packaged = ("plugins", "schemas", "conf", "systemd", "testing")
    places = {"ingestd": "ingestd"} | {name: f"ingestd/{name}" for name in packaged}
    places |= {"clients/browser": "ingestd/clients/browser", "clients/python": "ingestd/client"}
    return {"ingestd/clients/__init__.py"} | {
        f"{place}/{path.relative_to(root / name)}"
        for name, place in places.items()
        for path in (root / name).rglob("*")
        # The browser client is shipped as the files that are made of its sources.
        if path.is_file() and path.suffix in SHIPPED and not path.is_relative_to(root / "clients" / "browser" / "src")
    }


def test_the_wheel_holds_the_packages_and_their_files(wheel: Path) -> None:
    listed = configparser.ConfigParser()
    listed.read(ROOT / "setup.cfg")
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    manual = {name for name in files if ".data/" in name}
    in_tree = shipped(ROOT)
    assert files - manual == in_tree
    folder = f"{wheel.name.split('-py3-')[0]}.data/data/share/man/man1"
    assert manual == {f"{folder}/{page.name}" for page in (ROOT / "man").iterdir()}
    packages = {str(Path(name).parent).replace("/", ".") for name in in_tree if name.endswith("__init__.py")}
    assert set(listed["options"]["packages"].split()) == packages


def test_an_sdist_has_all_that_the_wheel_needs(source: Path, wheel: Path, version: str, tmp_path: Path) -> None:
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", build, folder=source)
    run("tar", "--extract", "--file", f"ingestd-{version}.tar.gz", folder=tmp_path)
    root = tmp_path / f"ingestd-{version}"
    assert run(sys.executable, "-c", "import ingestd; print(ingestd.__version__)", folder=root) == version
    assert shipped(root) == shipped(ROOT)
    assert {page.name for page in (root / "man").iterdir()} == {page.name for page in (ROOT / "man").iterdir()}
    clients = ("clients/node/package.json", "clients/php/Ingestd.php")
    for name in ("pyproject.toml", "scripts/building.py", "LICENSE", "CHANGELOG.md", *clients):
        assert (root / name).read_bytes() == (source / name).read_bytes()


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


def test_the_classes_of_the_contract_of_sinks_are_sinks() -> None:
    blocks = re.findall(r"^```python\n(.*?)```", CONTRACT.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
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
    assert len(files) + len(commands) + 1 == len(blocks), "the tests of this page do not cover the block"
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
