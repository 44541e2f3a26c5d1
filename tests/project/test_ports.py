"""Tests that run beside each other get different ports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
ASK = "from tests.support.ports import free_port; print(free_port())"


def test_a_process_with_another_folder_for_temporary_files_goes_on_with_the_next_port(tmp_path: Path) -> None:
    first = free_port()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", ASK], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    between = (int(answer.stdout) - first) % 17_000  # other tests may ask meanwhile
    assert 0 < between < 1000
