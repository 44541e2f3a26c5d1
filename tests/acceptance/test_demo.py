"""`make run`: what it prints works when pasted, and a second run keeps keys and data."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.daemon import run_ingestd
from tests.support.ports import free_port

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"


class Demo:
    """The running demo; `printed` is what a person sees before the daemon's log."""

    def __init__(self, folder: Path, port: int, ops_port: int) -> None:
        command = [sys.executable, str(DEMO), "--folder", str(folder), "--port", str(port), "--ops-port", str(ops_port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.process.stdout is not None
        self.printed = ""
        deadline = time.monotonic() + 20
        while "ready: " not in self.printed:
            assert time.monotonic() < deadline, self.printed
            if select.select([self.process.stdout], [], [], 1)[0]:
                self.printed += os.read(self.process.stdout.fileno(), 65536).decode()

    def curl_lines(self) -> list[str]:
        return re.findall(r"^ *(curl .*)$", self.printed, re.MULTILINE)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def test_the_printed_curl_lines_work_and_a_second_run_keeps_keys_and_data(tmp_path: Path) -> None:
    folder, ports = tmp_path / "demo", (free_port(), free_port())
    printed = []
    for run in (1, 2):
        demo = Demo(folder, *ports)
        lines = demo.curl_lines()
        answers = [subprocess.run(line, shell=True, capture_output=True, check=True).stdout for line in lines]
        assert demo.stop() == 0
        assert [answer.splitlines()[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 3
        printed.append(lines)
        exported = run_ingestd("events", "export", config=folder / "ingestd.toml").stdout.splitlines()
        assert len([line for line in exported if '"type":"attribution"' not in line]) == 3 * run
    assert printed[0] == printed[1]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "keys.json").stat().st_mode & 0o777 == 0o600
