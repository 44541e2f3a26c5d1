"""The clients behind a proxy that answers for the daemon: no event is lost, and nothing stops for good."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tests.support.backend import COMMANDS, PATIENCE, WITHOUT_EXTENSIONS, Backend, view
from tests.support.clients import wait_until
from tests.support.daemon import Shop
from tests.support.lying_server import Drip, answer, lying_server
from tests.support.webhook_server import make_certificate

ROOT = Path(__file__).parents[3]
WAYS = {**COMMANDS, "httpx": [sys.executable, "calls.py"], "php without extensions": WITHOUT_EXTENSIONS}
_RESULTS: list[Any] = [{"a": {"status": 200}}, [1], [{}], [{"status": 404}], [{"status": [200]}], [{"status": 200}] * 2]
LIES = [
    b"<html>Sign in to the wireless network</html>", b"", b"[" * 200_000, b'{"type": ["urn:ingestd:"]}',
    *(json.dumps({"results": results}).encode() for results in _RESULTS),
]  # fmt: skip
"""Answers with the status 200 that say nothing of an event."""
BROKEN = [
    answer(302, b"", "Location: /elsewhere"), answer(308, b"", "Location: /elsewhere"), answer(502, b"<html>no</html>"),
    answer(204), b"", b"no HTTP at all\r\n\r\n", answer(200, b"x" * 100)[:-50], answer(200)[:10],
]  # fmt: skip


@pytest.fixture(params=WAYS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    way = str(request.param)
    return Backend(Shop(tmp_path), WAYS[way], **({"httpx": True} if way == "httpx" else {}))


def test_an_answer_that_is_no_result_removes_no_event(backend: Backend) -> None:
    with backend.shop.serve() as daemon, lying_server(daemon) as server:
        backend.host = f"http://127.0.0.1:{server.port}"
        server.answers = [answer(200, lie) for lie in LIES]
        with backend.program([*map(view, range(40)), ["flush", 60]]) as program:
            wait_until(lambda: not server.answers, PATIENCE)
            program.kill()
            program.wait()
        assert backend.waiting() + backend.shop.count() >= 40
        backend.release()
        assert backend.run([["flush", 30]]) == [True], backend.errors()
    assert sorted(record["data"]["number"] for record in backend.shop.stored()) == [*range(40)]


def test_a_broken_answer_is_followed_by_a_pause(backend: Backend) -> None:
    with backend.shop.serve() as daemon, lying_server(daemon) as server:
        backend.host = f"http://127.0.0.1:{server.port}"
        server.answers = [told for broken in BROKEN for told in (broken, None)]
        calls = [call for number in range(len(BROKEN)) for call in (view(number), ["flush", 30])]
        shown = backend.run(calls, timeout=2)
    assert shown[1::2] == [True] * len(BROKEN), backend.errors()
    assert len(server.requests) >= 2 * len(BROKEN)
    assert sorted(record["data"]["number"] for record in backend.shop.stored()) == [*range(len(BROKEN))]


def test_the_pause_is_as_long_as_the_answer_asks(backend: Backend) -> None:
    """In seconds, until a date, or as the client likes; for ten minutes at most."""

    def until_a_date() -> bytes:
        return answer(503, b"", f"Retry-After: {formatdate(time.time() + 3, usegmt=True)}")

    with backend.shop.serve() as daemon, lying_server(daemon) as server:
        backend.host = f"http://127.0.0.1:{server.port}"
        server.answers = [
            answer(429, b"", "Retry-After: 2"), None, until_a_date, None, answer(503, b"", "Retry-After: soon"), None,
            answer(503, b"", "Retry-After: -5"), None, answer(429, b"", "Retry-After: 1000000000"),
        ]  # fmt: skip
        for asked in (2, 2, 0.5, 0.5):
            begun = len(server.requests)
            assert backend.run([view(begun), ["flush", 30]])[-1] is True, backend.errors()
            first, second = server.requests[begun:]
            assert second - first >= asked
        assert backend.run([view(8), ["flush", 2]])[-1] is False
        assert len(server.requests) == 9
    if (pause := backend.queue / "pause").exists():
        assert 500 < float(pause.read_text().split()[0]) - time.time() < 1000


def test_a_host_without_a_scheme_is_refused_at_once(backend: Backend) -> None:
    backend.host = "events.example.com:8080"  # a URL of the scheme events.example.com
    with backend.program([view(1)]) as program:
        assert program.wait(PATIENCE) != 0
    said = backend.errors() + (backend.shop.folder / "printed").read_text()  # PHP without its file of options prints
    assert re.search("events.example.com:8080'? is no address such as https://events.example.com", said)


@pytest.mark.parametrize("missing", ["host", "key", "secret", "tenant"])
def test_the_client_for_node_names_a_missing_option(missing: str) -> None:
    options = {"host": "https://events.example.com", "key": "k", "secret": "s", "tenant": "shop", missing: None}
    make = f"import {{ Client }} from '{ROOT}/clients/node/client.js'; new Client({json.dumps(options)})"
    done = subprocess.run(["node", "--input-type=module", "--eval", make], capture_output=True, text=True, check=False)
    assert f"TypeError: {missing} must be a string" in done.stderr


def test_an_answer_that_never_ends_is_none(backend: Backend) -> None:
    with backend.shop.serve() as daemon, lying_server(daemon) as server:
        backend.host = f"http://127.0.0.1:{server.port}"
        server.answers = [Drip(b"HTTP/1.1 200 OK\r\n\r\n")]
        assert backend.run([view(1), ["flush", 15]], timeout=1)[-1] is True, backend.errors()


def test_a_certificate_that_nobody_has_signed_is_refused(backend: Backend, tmp_path: Path) -> None:
    context, certificate = make_certificate(tmp_path)
    with backend.shop.serve() as daemon, lying_server(daemon, context) as server:
        backend.host = f"https://localhost:{server.port}"
        assert backend.run([view(1), ["flush", 1]])[-1] is False
        assert server.requests == []
        assert "certificate" in backend.errors()
        backend.release()
        trusts = f"curl.cainfo = {certificate}\nopenssl.cafile = {certificate}\n"
        (tmp_path / "trust.ini").write_text(trusts)
        backend.environment = {
            "SSL_CERT_FILE": str(certificate), "NODE_EXTRA_CA_CERTS": str(certificate),
            "PHP_INI_SCAN_DIR": f":{tmp_path}",
        }  # fmt: skip
        assert backend.run([["flush", 30]]) == [True], backend.errors()
