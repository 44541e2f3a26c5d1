"""Third-party distributions, written to a folder of the module path like by an installer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

__all__ = ["write_distribution"]


def write_distribution(
    folder: Path,
    name: str,
    *,
    modules: Mapping[str, str],
    plugins: Mapping[str, str],
    version: str = "1.0",
) -> Path:
    """Write a distribution into a folder that is, or will be, on the module path, and return the folder.

    `modules` maps the names of top-level modules to their source, `plugins` the names of plugins to
    their entry points: `module` or `module:attribute`.
    """
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = "".join(f"{plugin} = {target}\n" for plugin, target in plugins.items())
    (metadata / "entry_points.txt").write_text(f"[ingestd]\n{points}")
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(dedent(source))
    return folder
