"""ingestd runs after `pip install .`, after an editable install, and from a wheel in another folder."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.daemon import Daemon

ROOT = Path(__file__).parents[2]
SHIPPED = {
    ".py", ".json", ".toml", ".yml", ".sql", ".lua", ".typed", ".html", ".css", ".js", ".txt", ".service", ".socket",
    ".conf", ".ts",
}  # fmt: skip


def pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", folder, source)
    return next(folder.glob("ingestd-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the dependencies of the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    # Nothing is compiled: most of the modules of the dependencies are never imported.
    pip("--python", folder / "bin" / "python", "install", "--no-compile", wheel)
    return folder


@pytest.fixture(params=["wheel", "pip install .", pytest.param("editable", marks=pytest.mark.long)])
def installed(request: pytest.FixtureRequest, environment: Path, source: Path) -> str:
    if request.param != "wheel":
        kind = ["--editable"] if request.param == "editable" else []
        python = environment / "bin" / "python"
        pip("--python", python, "install", "--no-compile", "--no-deps", "--force-reinstall", *kind, source)
    return str(environment / "bin" / "ingestd")


def test_an_installed_ingestd_stores_an_event(installed: str, tmp_path: Path) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text(
        '[http]\nlisten = "127.0.0.1:0"\n[ops]\nlisten = "127.0.0.1:0"\n[store]\nurl = "sqlite:ingestd.db"\n'
    )

    def run(*arguments: str) -> str:
        return subprocess.run(
            [installed, *arguments, "--config", str(config)], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    key = json.loads(run("keys", "create", "--kind", "public", "--tenant", "shop", "--json"))["id"]
    with Daemon(config, command=installed) as daemon:
        body = {"key": "Page View", "anonymousId": "v", "data": {}}
        assert daemon.post("/track", body, key).status == 200
        assert daemon.terminate() == 0
    assert json.loads(run("events", "export"))["key"] == "Page View"
    assert "complete " in run("completion", "bash")


def test_the_wheel_holds_the_packages_and_their_files(wheel: Path) -> None:
    listed = configparser.ConfigParser()
    listed.read(ROOT / "setup.cfg")
    packaged = ("plugins", "clients", "schemas", "conf", "systemd")
    roots = {"ingestd": "ingestd"} | {name: f"ingestd/{name}" for name in packaged}
    in_tree = {
        f"{roots[path.relative_to(ROOT).parts[0]]}/{path.relative_to(ROOT / path.relative_to(ROOT).parts[0])}"
        for root in roots
        for path in (ROOT / root).rglob("*")
        # The browser client is shipped as the files that are made of its sources.
        if path.is_file() and path.suffix in SHIPPED and not path.is_relative_to(ROOT / "clients" / "browser" / "src")
    }
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    manual = {name for name in files if ".data/" in name}
    assert files - manual == in_tree
    folder = f"{wheel.name.split('-py3-')[0]}.data/data/share/man/man1"
    assert manual == {f"{folder}/{page.name}" for page in (ROOT / "man").iterdir()}
    packages = {str(Path(name).parent).replace("/", ".") for name in in_tree if name.endswith("__init__.py")}
    assert set(listed["options"]["packages"].split()) == packages
