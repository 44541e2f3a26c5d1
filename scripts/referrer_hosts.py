"""Writes plugins/sources/matomo.csv from Matomo's lists of search engines, social networks and assistants.

The lists are in the public domain (CC0): https://github.com/matomo-org/searchengine-and-social-list
Clone that repository, then: .venv/bin/python -m scripts.referrer_hosts FOLDER
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

FILE = Path(__file__).parents[1] / "plugins" / "sources" / "matomo.csv"
OWN = FILE.with_name("hosts.csv")
"""Rows of ours, which replace those of the lists."""

LISTS = {"AIAssistants.yml": "ai", "Socials.yml": "social", "SearchEngines.yml": "search"}
"""The kind of each list. Of a host in several lists, the first counts."""

_SEARCHING = re.compile(r"se?a?rch|busc|busq|cerca|find|such|zoek|hled|keres|szuk|searx|seek|haku|^sok$|^sog$")


def entries(text: str) -> Iterator[tuple[str, str]]:
    """The name and host of each entry. The files use a small part of YAML, so that no parser is needed."""
    name, in_hosts = "", True
    for line in text.splitlines():
        bare = line.strip()
        if bare.endswith(":") and not line.startswith(" "):
            name, in_hosts = unquote(bare[:-1].strip("\"'")).lower(), True
        elif bare.endswith(":"):
            in_hosts = bare == "urls:"
        elif bare.startswith("- ") and in_hosts:
            yield name, bare[2:].split(" #")[0].strip(" \"'").lower()


def is_usable(name: str, host: str, kind: str) -> bool:
    """Whether the host alone tells a search.

    Matomo also wants a search word in the address, which browsers no longer send. So portals and news sites with a
    search of another engine are left out, and entries with a path.
    """
    if "/" in host:
        return False
    letters = re.sub(r"[^a-z0-9]", "", name)
    labels = host.split(".")
    return kind != "search" or any(_SEARCHING.search(each) or (len(each) > 2 and each in letters) for each in labels)


def rows(folder: Path) -> Iterator[tuple[str, str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for file, kind in LISTS.items():
        for name, host in entries((folder / file).read_text()):
            pattern = host.removeprefix("{}.").removeprefix("www.")
            pattern = pattern[:-2] + "*" if pattern.endswith(".{}") else pattern
            if "{" not in pattern and is_usable(name, host, kind):
                found.setdefault(pattern, (name, kind))
    own = {row["host"] for row in csv.DictReader(OWN.read_text().splitlines())}
    for pattern, named in found.items():
        if pattern in own:
            continue
        parents = [pattern.split(".", count)[-1] for count in range(1, pattern.count("."))]
        if named not in [found.get(parent) for parent in parents]:  # otherwise the row of the parent says the same
            yield pattern, *named


def main() -> None:
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("host", "source", "kind"))
        writer.writerows(sorted(rows(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
