"""The commands of docs/upgrading.md work as they stand there, in their order."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from ingestd import RELEASE
from tests.support.daemon import Shop, run_ingestd
from tests.support.forked import INGESTD

PAGE = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text()
BLOCKS = re.findall(r"^( *)```sh\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line.strip() for _, block in BLOCKS for line in block.splitlines()]
COMMAND = re.compile(r"/opt/ingestd/(?:current|[\w.-]+)/bin/ingestd (.+?)(?: > .*)?")


def test_the_commands_work(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    prefix = tmp_path / "opt" / RELEASE
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "ingestd").symlink_to(INGESTD)
    (prefix / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "opt" / "current").symlink_to(RELEASE)
    units = tmp_path / "units"
    done = []
    for match in filter(None, map(COMMAND.fullmatch, LINES)):
        line = match[1].replace("/var/lib/ingestd/main", str(tmp_path)).replace("/opt/ingestd", str(tmp_path / "opt"))
        if line in done:  # as when another way begins
            continue
        more = ["--directory", str(units)] if line.startswith("install-units") else []
        found = run_ingestd(*shlex.split(line), *more, config=None if more or line == "--version" else shop.config)
        assert found.returncode == 0, f"{line}: {found.stderr}"
        done.append(line)
    assert [line.split()[0] for line in done] == ["--version", "check", "store", "install-units", "sinks", "events"]
    assert f"={tmp_path}/opt/current/bin/ingestd serve" in (units / "ingestd.service").read_text()


def test_the_versions_on_the_page_are_those_of_the_release() -> None:
    assert f"/opt/ingestd/{RELEASE}/bin" in PAGE
    assert f"ingestd-{RELEASE}-py3-none-any.whl" in PAGE
