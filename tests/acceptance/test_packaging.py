"""ingestd runs after `pip install .`, after an editable install, and from a wheel in another folder."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
import tarfile
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
    pip("wheel", "--no-deps", "--wheel-dir", folder, source)
    return folder / f"ingestd-{version}-py3-none-any.whl"


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


def test_an_installed_ingestd_stores_an_event(installed: str, version: str, tmp_path: Path) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text(
        '[http]\nlisten = "127.0.0.1:0"\n[ops]\nlisten = "127.0.0.1:0"\n[store]\nurl = "sqlite:ingestd.db"\n'
    )

    def ingestd(*arguments: str) -> str:
        return run(installed, *arguments, "--config", config, folder=tmp_path)

    assert run(installed, "--version", folder=tmp_path) == f"ingestd {version}"
    key = json.loads(ingestd("keys", "create", "--kind", "public", "--tenant", "shop", "--json"))["id"]
    with Daemon(config, command=installed) as daemon:
        body = {"key": "Page View", "anonymousId": "v", "data": {}}
        assert daemon.post("/track", body, key).status == 200
        assert daemon.terminate() == 0
    assert json.loads(ingestd("events", "export"))["key"] == "Page View"
    assert "complete " in ingestd("completion", "bash")


def shipped(root: Path) -> set[str]:
    """The files of a tree that belong into a wheel, by their places in it."""
    packaged = ("plugins", "clients", "schemas", "conf", "systemd")
    places = {"ingestd": "ingestd"} | {name: f"ingestd/{name}" for name in packaged}
    return {
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
    with tarfile.open(tmp_path / f"ingestd-{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / f"ingestd-{version}"
    assert run(sys.executable, "-c", "import ingestd; print(ingestd.__version__)", folder=root) == version
    assert shipped(root) == shipped(ROOT)
    assert {page.name for page in (root / "man").iterdir()} == {page.name for page in (ROOT / "man").iterdir()}
    for name in ("pyproject.toml", "scripts/building.py", "LICENSE", "CHANGELOG.md"):
        assert (root / name).read_bytes() == (source / name).read_bytes()
