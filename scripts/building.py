"""Steps of setuptools for wheels and sdists: each begins empty, and what it ships knows its version."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

__all__ = ["BuildPy", "Sdist"]


class BuildPy(build_py):
    def run(self) -> None:
        # setuptools packs all that it finds there, so modules that are gone from the source would be installed again.
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            _write_version(Path(self.build_lib), self.distribution.get_version())


class Sdist(sdist):
    def make_distribution(self) -> None:
        folders = Path("clients/node"), Path("clients/php")  # not of Python, so in no package
        clients = [str(path) for folder in folders for path in folder.iterdir()]
        self.filelist.extend(["scripts/building.py", "CHANGELOG.md", "SECURITY.md", *clients])
        super().make_distribution()

    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        super().make_release_tree(base_dir, files)
        _write_version(Path(base_dir), self.distribution.get_version())


def _write_version(folder: Path, version: str) -> None:
    module = folder / "ingestd" / "__init__.py"
    text, replaced = re.subn(r'^BUILT = ".*"$', f'BUILT = "{version}"', module.read_text("utf-8"), flags=re.MULTILINE)
    assert replaced == 1
    module.unlink()  # an sdist is made of hard links to the source
    module.write_text(text, "utf-8")
