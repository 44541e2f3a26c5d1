"""Builds all that a release offers for download, in dist/; `make dist` runs it.

`dist/` gets the sdist, the wheel, `wheelhouse/` with the wheels of ingestd and all its dependencies, an SBOM of them
(CycloneDX, JSON) and a Debian package with the same distributions. They are for Debian's own Python and the
architecture of this machine. Everything after the download of the dependencies comes from the wheelhouse.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["make_deb"]

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
STAGE = ROOT / "build" / "deb"
"""The files of the Debian package, below the root of a file system."""

PYTHON = "/usr/bin/python3"
PREFIX = Path("/usr/lib/ingestd")
_UNITS_PREFIX = "/opt/ingestd"  # the environment in the units' source
_COMPLETIONS = {
    "bash": "bash-completion/completions/ingestd",
    "zsh": "zsh/vendor-completions/_ingestd",
    "fish": "fish/vendor_completions.d/ingestd.fish",
}

# pip's own command names the folder of the build, in another form if that has a long name.
_COMMAND = "import sys\nfrom ingestd.__main__ import main\nsys.exit(main())\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", required=True, help="the optional libraries, with commas: nats,kafka")
    extras = parser.parse_args().extras
    os.umask(0o022)
    for folder in (DIST, STAGE):
        shutil.rmtree(folder, ignore_errors=True)
    version = _make_sdist_and_wheel()
    environment = STAGE / PREFIX.relative_to("/")
    _run(PYTHON, "-m", "venv", "--without-pip", environment)
    _make_wheelhouse(environment, version, extras)
    _make_sbom(environment / "bin" / "python", DIST / f"ingestd-{version}.cdx.json")
    _stage(environment)
    make_deb(ROOT, version)
    for path in sorted(DIST.iterdir()):
        print(path.relative_to(ROOT))  # noqa: T201 - the outcome


def _run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(  # noqa: S603 - commands of this module
        command, cwd=folder, env={**os.environ, **environment}, check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def _make_sdist_and_wheel() -> str:
    """Makes the wheel of the sdist, which proves that the sdist is complete. Returns their version."""
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST)
    return next(DIST.glob("*.whl")).name.split("-")[1]


def _make_wheelhouse(environment: Path, version: str, extras: str) -> None:
    """Makes the wheelhouse, and installs it into the environment without a network."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet", "--python", environment / "bin" / "python"]
    house = DIST / "wheelhouse"
    wheel = next(DIST.glob("*.whl"))
    _run(*pip, "wheel", "--wheel-dir", house, f"ingestd[{extras}] @ {wheel.as_uri()}")
    offline: list[str | Path] = ["--no-index", "--find-links", house]
    _run(*pip, "install", *offline, "--no-compile", f"ingestd[{extras}]=={version}", PIP_FIND_LINKS="")


def _make_sbom(python: Path, target: Path) -> None:
    tool = Path(sys.executable).with_name("cyclonedx-py")
    # The tool would take seconds to compare what it writes with its schema. A test compares the whole document.
    options = ("--no-validate", "--output-reproducible", "--output-format", "JSON")
    made = _run(tool, "environment", *options, python)
    document: dict[str, Any] = msgspec.json.decode(made)
    # The tool lists ingestd beside its dependencies. It is the subject of the document.
    [subject] = [each for each in document["components"] if each["name"] == "ingestd"]
    document["components"].remove(subject)
    document["metadata"]["component"] = {**subject, "type": "application"}
    target.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")


def _stage(environment: Path) -> None:
    """Puts the files in the places of a Debian system, around the environment."""
    command = environment / "bin" / "ingestd"
    shared = STAGE / "usr" / "share"
    for shell, place in _COMPLETIONS.items():
        (shared / place).parent.mkdir(parents=True)
        (shared / place).write_text(_run(command, "completion", shell) + "\n")
    manual = shared / "man" / "man1"
    manual.mkdir(parents=True)
    for page in sorted((environment / "share" / "man" / "man1").iterdir()):
        (manual / f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
    for folder in ("share", "include"):
        shutil.rmtree(environment / folder)
    units = STAGE / "usr" / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    for unit in sorted((ROOT / "systemd").glob("ingestd*")):
        text = unit.read_text().replace(f"ExecPaths=/usr {_UNITS_PREFIX}", "ExecPaths=/usr")
        text = text.replace("`ingestd install-units` replaces", "an upgrade of the package replaces")
        (units / unit.name).write_text(text.replace(_UNITS_PREFIX, str(PREFIX)))
    _make_relocatable(environment)
    (STAGE / "usr" / "bin").mkdir()
    (STAGE / "usr" / "bin" / "ingestd").symlink_to(PREFIX / "bin" / "ingestd")


def _make_relocatable(environment: Path) -> None:
    """Makes the environment one of its final path, with all modules compiled: nothing is written after that."""
    command = environment / "bin" / "ingestd"
    for script in (environment / "bin").iterdir():
        if not script.is_symlink():
            script.unlink()  # commands of the dependencies, and `activate`
    command.write_text(f"#!{PREFIX}/bin/python\n{_COMMAND}")
    command.chmod(0o755)
    settings = environment / "pyvenv.cfg"
    kept = [line for line in settings.read_text().splitlines() if not line.startswith("command")]
    settings.write_text("\n".join(kept) + "\n")
    by_hash = ["--invalidation-mode", "unchecked-hash"]  # packages change the times of files
    _run(PYTHON, "-m", "compileall", "-q", *by_hash, "-s", environment, "-p", PREFIX, environment / "lib")


def make_deb(root: Path, version: str) -> Path:
    """Makes the package of the staged files in `root`. `1.2.dev3` is older than `1.2`, so it becomes `1.2~dev3`."""
    python = next((root / "build" / "deb" / "usr" / "lib" / "ingestd" / "lib").iterdir()).name.removeprefix("python")
    major, minor = map(int, python.split("."))
    _run(
        Path(sys.executable).with_name("nfpm"), "package", "--packager", "deb", "--config", "packaging/nfpm.yaml",
        "--target", root / "dist",
        folder=root,
        VERSION=version.replace(".dev", "~dev"),
        ARCHITECTURE=_run("dpkg", "--print-architecture"),
        PYTHON_VERSION=python,
        NEXT_PYTHON=f"{major}.{minor + 1}",
    )  # fmt: skip
    return max((root / "dist").glob("*.deb"), key=lambda each: each.stat().st_mtime_ns)


if __name__ == "__main__":
    main()
