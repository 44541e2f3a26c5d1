"""Customer-event ingestion for e-commerce: HTTP endpoints, a durable journal, sinks.

A build writes the version down here. In a checkout, git tells it at each start.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

__all__ = ["RELEASE", "__version__", "find_version"]

RELEASE = "0.2.0"
"""The newest version in CHANGELOG.md. States without its tag in their history are development states of it."""

BUILT = ""
"""The version of a wheel or an sdist. `scripts/building.py` puts it here, in the copy of this file that is shipped."""

_ARCHIVED = "$Format:%(describe:tags,match=v[0-9]*)$ $Format:%h$"
"""`git archive` puts the tag and the commit here, so an archive that a forge offers for download has them too."""

_DESCRIBE = ["describe", "--tags", "--match=v[0-9]*", "--long", "--always", "--dirty=.dirty"]


def find_version(root: Path) -> str:
    """The version of the source tree at `root`.

    `0.2.0` at the tag `v0.2.0`, and `0.2.1.dev3+gHASH` three commits later. Files that differ from the commit add
    `.dirty`. Without a tag, such as in a shallow clone, it is `0.2.0.devN+gHASH`, with the number of known commits.
    """
    if "Format" not in _ARCHIVED:
        described, _, commit = _ARCHIVED.rpartition(" ")
        return _version(described or commit, commits="0")
    if not (root / ".git").exists():
        return f"{RELEASE}.dev0+unknown"
    try:
        described = _git(root, *_DESCRIBE)
        return _version(described, commits="" if "-" in described else _git(root, "rev-list", "--count", "HEAD"))
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user
        return f"{RELEASE}.dev0+unknown"


def _version(described: str, commits: str) -> str:
    """The version for `v0.2.0-3-gHASH`, or for a `HASH` without a tag. At a tag, `git archive` has `v0.2.0` alone."""
    match = re.fullmatch(r"v(\d+(?:\.\d+)*)(?:-(\d+)-g(\w+(?:\.dirty)?))?", described)
    if match is None:
        return f"{RELEASE}.dev{commits}+g{described}"
    tag, distance, commit = match.groups()
    if distance is None or (distance == "0" and not commit.endswith(".dirty")):
        return tag
    *front, last = tag.split(".")
    return f"{'.'.join([*front, str(int(last) + 1)])}.dev{distance}+g{commit}"


def _git(root: Path, *arguments: str) -> str:
    # A hook of git names the repository that it runs in. And a start changes nothing in a checkout.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(  # noqa: S603 - fixed arguments
        ["git", "-C", root, *arguments],  # noqa: S607 - git is where the user has installed it
        env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


__version__ = BUILT or find_version(Path(__file__).parents[1])
