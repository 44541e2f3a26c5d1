"""`pytest --processes N`: each test is told once, also of a process that dies, and what tests have started ends."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import parallel
from tests.support.clients import wait_until

ROOT = Path(__file__).parents[2]
FILE = """
import os, signal, time, warnings
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Path(__file__).with_suffix(f".{os.getpid()}")
    server.touch()
    yield server
    time.sleep(0.1)
    server.unlink()

def wait_for(path):
    for _ in range(500):
        if path.exists(): return
        time.sleep(0.01)
    assert False, path

def test_first(server, tmp_path): assert server.exists(); warnings.warn("careful")
def test_wrong(server): print("a word"); assert False, "wrong"
@pytest.mark.skip(reason="not now")
def test_skipped(): pass
"""
DEATH = """
def test_death():
    if not os.fork(): time.sleep(60); os._exit(0)
    os.kill(os.getpid(), 9)
def test_question(): breakpoint()
def test_after_death(server): assert server.exists()
"""
WAIT = """
def test_wait(server): wait_for(server.parent / "begun"); (server.parent / "waits").touch(); time.sleep(300)
"""
HANG = WAIT.replace(
    "(server):", "(server): signal.signal(signal.SIGINT, lambda *_: (server.parent / 'interrupted').touch());"
)
BEGUN = """
def test_begun(server): (server.parent / "begun").touch()
"""
FAILURE = """
def test_failure(server): wait_for(server.parent / "waits"); assert False
"""
EXIT = FAILURE.replace("assert False", "pytest.exit('enough', 7)")
STOP = """
def pytest_runtest_logreport(report):
    if report.failed: session.shouldstop = "enough"
def pytest_collection_finish(session): globals()["session"] = session
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.support.parallel"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", "--processes", "2", "-p", "no:cacheprovider", "-rA", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def end_of(run: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and the output, which ends once no process is left that has inherited it."""
    output, errors = run.communicate("continue\n", timeout=30)
    return run.returncode, output + errors


def told(output: str) -> list[str]:
    words = ("PASSED", "FAILED", "ERROR", "SKIPPED")
    return sorted(line.split(" - ")[0] for line in output.splitlines() if line.startswith(words))


def test_each_test_of_each_file_is_told(folder: Path) -> None:
    for name in "abc":
        (folder / f"test_{name}.py").write_text(FILE)
    code, output = end_of(started(folder))
    assert code == 1
    assert [line for line in told(output) if line.startswith(("PASSED", "FAILED"))] == [
        *(f"FAILED test_{name}.py::test_wrong" for name in "abc"),
        *(f"PASSED test_{name}.py::test_first" for name in "abc"),
    ]
    assert "3 failed, 3 passed, 3 skipped, 3 warnings" in output
    assert output.count("a word") == 6  # in the source and in the captured output
    assert output.count("UserWarning: careful") == 3


def test_a_process_that_dies_fails_its_test_and_no_other(folder: Path) -> None:
    for name in "ab":
        (folder / f"test_{name}.py").write_text(FILE + DEATH)
    code, output = end_of(started(folder))
    assert code == 1
    assert "FAILED test_a.py::test_death - its process ended with -9" in output
    assert output.count("_ test_death _") == 2
    assert "FAILED test_a.py::test_question - bdb.BdbQuit" in output  # there is nobody to answer
    assert "6 failed, 4 passed, 2 skipped, 2 warnings" in output  # the next process does not repeat a warning


@pytest.mark.parametrize(
    ("end", "code"), [("ctrl-c", 2), ("second ctrl-c", 2), ("kill", -9), ("first failure", 1), ("stop", 2)]
)
def test_an_end_before_the_last_test_ends_what_tests_have_started(folder: Path, end: str, code: int) -> None:
    right = FILE.replace('assert False, "wrong"', "pass")
    fails = end in ("first failure", "stop")
    (folder / "test_a.py").write_text(right + (HANG if end == "second ctrl-c" else WAIT))
    (folder / "test_b.py").write_text(right + BEGUN + (FAILURE if fails else ""))
    if end == "stop":
        with (folder / "conftest.py").open("a") as conftest:
            conftest.write(STOP)
    run = started(folder, *["--exitfirst"] * (end == "first failure"))
    wait_until((folder / "waits").exists)
    if end == "kill":
        run.kill()
    elif not fails:
        run.send_signal(signal.SIGINT)
    if end == "second ctrl-c":
        wait_until((folder / "interrupted").exists)
        wait_until(lambda: not list(folder.glob("test_b.[0-9]*")))
        run.send_signal(signal.SIGINT)
    assert end_of(run)[0] == code
    left = [file.name for file in folder.glob("test_?.[0-9]*")]
    assert len(left) == (end == "second ctrl-c"), left


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        ("parallel_process._separate = None", "'NoneType' object is not callable"),
        (
            "parallel.work = lambda *args: os.kill(os.getpid(), 2) or parallel_process.work(*args)",
            "> KeyboardInterrupt",
        ),
    ],
)
def test_a_process_that_cannot_begin_ends_the_run(folder: Path, obstacle: str, words: str) -> None:
    (folder / "test_a.py").write_text(FILE)
    with (folder / "conftest.py").open("a") as conftest:
        conftest.write(f"import os\nfrom tests.support import parallel, parallel_process\n{obstacle}\n")
    code, output = end_of(started(folder))
    assert code == 3  # an internal error
    assert words in output


def test_no_process_withholds_a_unit_while_it_runs_another(folder: Path) -> None:
    beginning = FILE.partition("def test_first")[0]
    for name, tests in {
        "a": """
def test_beside_b(server): wait_for(server.parent / "b")
def test_last(server): (server.parent / "a").touch(); wait_for(server.parent / "c")
""",
        "b": """
def test_beside_a(server): (server.parent / "b").touch(); wait_for(server.parent / "a")
def test_last(): pass
""",
        "c": 'def test(server): (server.parent / "c").touch()',
    }.items():
        (folder / f"test_{name}.py").write_text(beginning + tests)
    code, output = end_of(started(folder))
    assert code == 0, output


def test_a_test_can_end_the_run(folder: Path) -> None:
    (folder / "test_a.py").write_text(FILE + WAIT)
    (folder / "test_b.py").write_text(FILE + BEGUN + EXIT)
    code, output = end_of(started(folder))
    assert code == 7
    assert "Exit: enough" in output
    assert not list(folder.glob("test_?.[0-9]*"))


def test_what_a_test_starts_with_multiprocessing_ends_with_its_process(folder: Path) -> None:
    process = "multiprocessing.get_context('fork').Process(target=time.sleep, args=[60], daemon=True)"
    (folder / "test_a.py").write_text(f"import multiprocessing, time\ndef test_a(): {process}.start()\n")
    assert end_of(started(folder))[0] == 0


def test_an_exception_in_an_object_found_after_the_last_test_fails_the_run(folder: Path) -> None:
    broken = "class Broken:\n def __init__(self): self.cycle = self\n def __del__(self): raise ValueError('late')\n"
    (folder / "test_a.py").write_text(f"{broken}def test_a(): Broken()\n")
    code, output = end_of(started(folder, "-W", "error"))
    assert code == 1
    assert "ValueError: late" in output


def test_a_debugger_is_refused(folder: Path) -> None:
    code, output = end_of(started(folder, "--pdb"))
    assert code == 4
    assert "need the terminal" in output


def test_a_process_may_die_amid_a_message_or_before_an_answer() -> None:
    ours, theirs = Pipe()
    worker = parallel._Worker(os.getpid(), ours)
    theirs.send(("ready", None))
    os.write(theirs.fileno(), struct.pack("!i", 1000))  # the length of a message
    theirs.close()
    session: Any = SimpleNamespace(config=SimpleNamespace(hook=None))
    parallel._Parallel(2)._hear(session, worker)
    assert worker.receive() == ("gone", None)
