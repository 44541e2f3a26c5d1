"""The ends of processes, and processes and threads that share a client: each event that was kept is stored once."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.backend import COMMANDS, FLUSH, PATIENCE, Backend
from tests.support.daemon import Shop
from tests.support.lying_server import answer, lying_server

ROOT = Path(__file__).parents[3]

PYTHON = """
import asyncio, atexit, os, signal, sys, threading, time
from ingestd.client import AsyncClient, Client
def track(number):
    client.track("Page View", {"end": sys.argv[5], "number": number})
if sys.argv[5] == "atexit":
    atexit.register(track, 2)
client = Client(*sys.argv[1:4], "shop", folder=sys.argv[4])
track(1)
"""
NODE = f"""
import {{ Worker, isMainThread, parentPort }} from 'node:worker_threads'
import {{ Client }} from '{ROOT}/clients/node/client.js'
const [host, key, secret, folder, end] = process.argv.slice(2)
const client = new Client({{ host, key, secret, tenant: 'shop', folder, interval: 10 }})
client.track('Page View', {{ end }})
const begin = () => new Worker(new URL(import.meta.url), {{ argv: process.argv.slice(2) }})
"""
PHP = f"""
require '{ROOT}/clients/php/Ingestd.php';
[, $host, $key, $secret, $folder, $end] = $argv;
$client = new Ingestd\\Client($host, $key, $secret, 'shop', folder: $folder);
$client->track('Page View', ['end' => $end]);
"""
ENDS = {
    "python": {
        "the last line": (1, ""), "an exception": (1, "1 / 0"), "exit": (1, "sys.exit(3)"), "atexit": (2, ""),
        "_exit": (1, "os._exit(0)"), "SIGTERM": (1, "os.kill(os.getpid(), signal.SIGTERM)"),
        "exec": (1, "os.execv('/bin/true', ['true'])"),
        "a thread": (2, "threading.Thread(target=track, args=[2]).start()"),
        "fork": (3, "pid = os.fork()\ntrack(2 + bool(pid))\nif pid: os.waitpid(pid, 0)"),
        "threads in a fork": (
            8, "if os.fork(): os.wait()\nelse: [threading.Thread(target=track, args=[n]).start() for n in range(2, 9)]"
        ),
        "_exit of a fork": (2, "if os.fork(): os.wait()\nelse: track(2); os._exit(0)"),
        "asyncio with httpx, twice": (
            3, "import httpx; client = AsyncClient(*sys.argv[1:4], 'shop', folder=sys.argv[4], http=httpx.Client)\n"
            "for n in range(2, 4): asyncio.run(client.track('Page View', {'end': sys.argv[5], 'number': n}))"
        ),
    },
    "node": {
        "the last line": (1, ""), "an exception": (1, "throw new Error('an end')"), "exit": (1, "process.exit(0)"),
        "a rejection": (1, "Promise.reject(new Error('an end'))"), "SIGTERM": (1, "process.kill(process.pid)"),
        "close": (1, "await client.close()"), "worker threads": (4, "if (isMainThread) { begin(); begin(); begin() }"),
        "a worker that is terminated": (
            2, "if (!isMainThread) { setInterval(() => {}, 1000); parentPort.postMessage(0) }\n"
            "else { const worker = begin(); worker.on('message', () => worker.terminate()) }"
        ),
    },
    "php": {
        "the last line": (1, ""), "an exception": (1, "throw new Exception('an end');"), "exit": (1, "exit(0);"),
        "a fatal error": (1, "undefined();"), "SIGTERM": (1, "posix_kill(getmypid(), SIGTERM);"),
        "memory": (1, "ini_set('memory_limit', '8M'); str_repeat('x', 100_000_000);"),
        "fork": (
            3, "$client->flush(); $pid = pcntl_fork(); $client->track('Page View', ['end' => $end]);"
            "$client->flush(); if ($pid) pcntl_wait($status);"
        ),
    },
}  # fmt: skip
"""The events of a process and what it does at its end, by the name of the end."""


@pytest.mark.parametrize("language", ENDS)
def test_each_event_is_stored_once_at_any_end(language: str, tmp_path: Path) -> None:
    if shutil.which(COMMANDS[language][0]) is None:
        pytest.skip(f"{language} is not on PATH")
    backend = Backend(Shop(tmp_path), COMMANDS[language])
    program, begins = {
        "python": (tmp_path / "ends.py", PYTHON), "node": (tmp_path / "ends.mjs", NODE),
        "php": (tmp_path / "ends.php", f"<?php {PHP}"),
    }[language]  # fmt: skip
    key = backend.shop.server
    with backend.shop.serve() as daemon:
        backend.host = f"http://127.0.0.1:{daemon.port}"
        for name, (_, end) in ENDS[language].items():
            program.write_text(begins + end)
            arguments = [backend.host, key.id, key.secret, str(backend.queue), name]
            command = [COMMANDS[language][0], str(program), *arguments]
            subprocess.run(command, timeout=PATIENCE, capture_output=True, check=False)
        assert backend.run([FLUSH]) == [True], backend.errors()
    stored = Counter(record["data"]["end"] for record in backend.shop.stored())
    assert stored == {name: events for name, (events, _) in ENDS[language].items()}


def test_a_long_queue_does_not_hold_up_the_end_of_a_process(backend: Backend) -> None:
    def slowly() -> bytes:
        time.sleep(0.5)
        return answer(200, b'{"results": [{"status": 200}]}')

    backend.queue.mkdir()
    for number in range(40):  # a request for each, so 20 seconds
        (backend.queue / f"{number:016}-.json").write_text(json.dumps({"data": {"text": "x" * 240_000}}))
    with lying_server() as server:
        server.answers = [slowly] * 50
        backend.host = f"http://127.0.0.1:{server.port}"
        backend.run([["track", "Page View", {}, {}], ["flush", 0.1]])
        assert 1 < len(server.requests) < 35
