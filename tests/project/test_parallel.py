"""`pytest --processes N`: each test is told once, also of a process that dies, and what tests have started ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clients import wait_until

ROOT = Path(__file__).parents[2]
FILE = """
import os, time
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Path(__file__).with_suffix(f".{os.getpid()}")
    server.touch()
    yield server
    server.unlink()

def test_first(server, tmp_path): assert server.exists()
def test_wrong(server): print("a word"); assert False, "wrong"
@pytest.mark.skip(reason="not now")
def test_skipped(): pass
"""
DEATH = """
def test_death(): os.kill(os.getpid(), 9)
def test_after_death(server): assert server.exists()
"""
WAIT = """
def test_wait(server): (server.parent / "waits").touch(); time.sleep(300)
"""
FAILURE = """
def test_failure(server):
    while not (server.parent / "waits").exists(): time.sleep(0.01)
    assert False
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.support.parallel"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", "--processes", "2", "-p", "no:cacheprovider", "-rA", *options]
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=paths, stdout=subprocess.PIPE, text=True)


def told(output: str) -> list[str]:
    words = ("PASSED", "FAILED", "ERROR", "SKIPPED")
    return sorted(line.split(" - ")[0] for line in output.splitlines() if line.startswith(words))


def test_each_test_of_each_file_is_told(folder: Path) -> None:
    for name in "abc":
        (folder / f"test_{name}.py").write_text(FILE)
    run = started(folder)
    output, _ = run.communicate()
    assert run.returncode == 1
    assert [line for line in told(output) if line.startswith(("PASSED", "FAILED"))] == [
        *(f"FAILED test_{name}.py::test_wrong" for name in "abc"),
        *(f"PASSED test_{name}.py::test_first" for name in "abc"),
    ]
    assert "3 failed, 3 passed, 3 skipped" in output
    assert output.count("a word") == 6  # in the source and in the captured output


def test_a_process_that_dies_fails_its_test_and_no_other(folder: Path) -> None:
    for name in "ab":
        (folder / f"test_{name}.py").write_text(FILE + DEATH)
    run = started(folder)
    output, _ = run.communicate()
    assert run.returncode == 1
    assert "FAILED test_a.py::test_death - its process ended with -9" in output
    assert "4 failed, 4 passed, 2 skipped" in output


@pytest.mark.parametrize("end", ["ctrl-c", "first failure"])
def test_an_end_before_the_last_test_ends_what_tests_have_started(folder: Path, end: str) -> None:
    right = FILE.replace("assert False", "assert True")
    (folder / "test_a.py").write_text(right + WAIT)
    (folder / "test_b.py").write_text(right)
    if end == "first failure":
        (folder / "test_b.py").write_text(right + FAILURE)
    run = started(folder, "--exitfirst")
    wait_until((folder / "waits").exists)
    if end == "ctrl-c":
        run.send_signal(signal.SIGINT)
    output, _ = run.communicate()
    assert run.returncode == (2 if end == "ctrl-c" else 1), output
    assert [file.suffix for file in folder.glob("test_?.*") if file.suffix != ".py"] == []


def test_a_process_that_cannot_begin_ends_the_run(folder: Path) -> None:
    (folder / "test_a.py").write_text(FILE)
    with (folder / "conftest.py").open("a") as conftest:
        conftest.write("from tests.support import parallel\nparallel._separate = None\n")
    run = started(folder)
    output, _ = run.communicate()
    assert run.returncode == 3  # an internal error
    assert "'NoneType' object is not callable" in output
