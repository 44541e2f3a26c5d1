"""The process that finds canonical forms: its answers, its failures, and its isolation from the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from ingestd.api.errors import Unavailable
from ingestd.plugins.auth import canonical_process
from ingestd.plugins.auth.canonical_process import CanonicalProcess
from ingestd.plugins.auth.ecmascript import canonical
from tests.support.processes import open_files, own_children, wait_for_end

DOCUMENTS = [
    b"{}",
    b'{"b": 40.0, "2": 1e21, "1": "\\ud800"}',
    '[ "Größe" ]'.encode(),
    b"[" + b"1e20," * 13_000 + b"0]",  # the canonical form is four times as long
    b'"%s"' % (b"x" * 65_000),
    b"",
    b"not JSON",
    b"\xff",
    b"[" * 60_000,
]


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[CanonicalProcess]:
    process = CanonicalProcess()
    try:
        yield process
    finally:
        await process.close()
        assert not own_children()


async def test_answers_are_the_canonical_forms_even_of_simultaneous_requests() -> None:
    async with running() as process:
        assert not own_children()  # the process starts with the first request
        answers = await asyncio.gather(*map(process.canonical, DOCUMENTS * 3))
        assert answers == [canonical(document) for document in DOCUMENTS] * 3
        assert len(own_children()) == 1


async def test_it_has_three_files_and_a_separate_process_group() -> None:
    with open(os.devnull) as inheritable:  # noqa: ASYNC230 - /dev/null never blocks
        os.set_inheritable(inheritable.fileno(), True)
        async with running() as process:
            await process.canonical(b"{}")
            [pid] = own_children()
            assert {*open_files(pid)} == {0, 1, 2}
            assert os.getpgid(pid) == pid != os.getpgid(0)
            # A signal to its process group ends it, like any program.
            os.kill(pid, signal.SIGTERM)
            assert wait_for_end(pid)


@pytest.mark.logs("the process for canonical forms of signed bodies failed")
async def test_after_its_death_another_one_answers() -> None:
    async with running() as process:
        for document in DOCUMENTS[:3]:
            await process.canonical(document)
            [pid] = own_children()
            os.kill(pid, signal.SIGKILL)
        assert await process.canonical(b"[ ]") == b"[]"


@pytest.mark.logs("the process for canonical forms of signed bodies failed")
@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-c", "pass"),
        (sys.executable, "-c", "import sys; sys.stdin.buffer.read(4); sys.stdout.buffer.write(b'\\0\\0\\0\\2x')"),
        ("/does/not/exist",),
    ],
    ids=["ends at once", "ends within an answer", "cannot be started"],
)
async def test_after_two_failures_the_caller_must_retry(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    async with running() as process:
        with monkeypatch.context() as patched:
            patched.setattr(canonical_process, "_COMMAND", command)
            with pytest.raises(Unavailable, match="Send the request again"):
                await process.canonical(b"[ ]")
        assert await process.canonical(b"[ ]") == b"[]"


@pytest.mark.logs("the process for canonical forms of signed bodies failed: TimeoutError")
async def test_a_stopped_process_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as process:
        await process.canonical(b"{}")
        [pid] = own_children()
        os.kill(pid, signal.SIGSTOP)
        with monkeypatch.context() as patched:
            patched.setattr(canonical_process, "_ANSWER_TIMEOUT", 0.01)
            with contextlib.suppress(Unavailable):  # the second attempt may be too slow as well
                await process.canonical(b"[ ]")
        assert pid not in own_children()
        assert await process.canonical(b"[ ]") == b"[]"


async def test_an_abandoned_answer_goes_to_no_other_caller() -> None:
    async with running() as process:
        await process.canonical(b"{}")
        for turns in range(6):
            given_up = asyncio.create_task(process.canonical(DOCUMENTS[3]))
            for _ in range(turns):
                await asyncio.sleep(0)
            given_up.cancel()
            assert await process.canonical(b"[ %d ]" % turns) == b"[%d]" % turns
            assert isinstance((await asyncio.gather(given_up, return_exceptions=True))[0], asyncio.CancelledError)
