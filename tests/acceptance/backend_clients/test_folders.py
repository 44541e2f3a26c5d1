"""The queue folder of the clients: foreign and spoilt files, a full disk, one that cannot be written, a wrong clock."""

from __future__ import annotations

import json
import os
import subprocess
import time

from tests.support.backend import FLUSH, Backend, view
from tests.support.disks import full, small_disk

YEAR = 365 * 24 * 3600


def test_a_spoilt_file_stops_no_event(backend: Backend) -> None:
    backend.queue.mkdir()
    (backend.queue / "0000000000000001-folder.json").mkdir()
    (backend.queue / "0000000000000002-empty.json").touch()
    (backend.queue / "0000000000000003-zeros.json").write_bytes(bytes(100))
    (backend.queue / "0000000000000004-half.json").write_bytes(b'{"key": "Page View", "anony')
    (backend.queue / "notes.json").write_bytes(b'{"key": "Page View", "anonymousId": "v", "data": {"number": 7}}')
    (backend.queue / "notes.txt").touch()
    with backend.shop.serve() as daemon:
        backend.host = f"http://127.0.0.1:{daemon.port}"
        shown = backend.run([view(1), view(2), ["flush", 2]])
    assert sum(isinstance(each, dict) for each in shown) == 3, shown
    assert sorted(record["data"]["number"] for record in backend.shop.stored()) == [1, 2, 7]
    assert "folder.json" in backend.errors()
    assert backend.waiting() == 1


def test_a_clock_that_was_a_year_ahead_delays_no_event(backend: Backend) -> None:
    backend.queue.mkdir()
    ahead = time.time() + YEAR
    path = backend.queue / f"{ahead * 10**6:016.0f}-00000000.json"
    path.write_text(json.dumps({"key": "Page View", "anonymousId": "v", "data": {"number": 0}}))
    for name in (path.name, "lock", "lock.pid", "count", "refused"):
        (backend.queue / name).touch()
        os.utime(backend.queue / name, (ahead, ahead))
    (backend.queue / "pause").write_text(f"{ahead} 3")
    with backend.shop.serve() as daemon:
        backend.host = f"http://127.0.0.1:{daemon.port}"
        assert backend.run([view(1), FLUSH])[-1] is True, backend.errors()
    assert sorted(record["data"]["number"] for record in backend.shop.stored()) == [0, 1]


def test_a_full_disk_is_told_and_gets_empty(backend: Backend) -> None:
    backend.queue.mkdir()
    with small_disk(backend.queue, megabytes=1):
        with full(backend.queue):
            assert backend.run([view(0)]) == [{"error": "disk"}]
        shown = backend.run([view(number, text="x" * 2000) for number in range(600)])
        kept = [number for number, each in enumerate(shown) if isinstance(each, str)]
        assert 100 < len(kept) < 600
        with full(backend.queue), backend.shop.serve() as daemon:
            backend.host = f"http://127.0.0.1:{daemon.port}"
            assert backend.run([FLUSH]) == [True], backend.errors()
        assert sorted(record["data"]["number"] for record in backend.shop.stored()) == kept


def test_a_disk_that_cannot_be_written_is_told(backend: Backend) -> None:
    backend.queue.mkdir()
    with small_disk(backend.queue, megabytes=1), backend.shop.serve() as daemon:
        backend.run([view(0)])  # no daemon has this address
        backend.host = f"http://127.0.0.1:{daemon.port}"
        subprocess.run(["mount", "-o", "remount,ro", backend.queue], check=True)
        assert backend.run([view(1), ["flush", 1]]) == [{"error": "disk"}, False]
        subprocess.run(["mount", "-o", "remount,rw", backend.queue], check=True)
        backend.release()
        assert backend.run([FLUSH]) == [True], backend.errors()
    assert [record["data"]["number"] for record in backend.shop.stored()] == [0]
