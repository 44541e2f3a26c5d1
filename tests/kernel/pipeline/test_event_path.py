"""The path of one event, from the socket to its answer, passes few modules: whoever follows it reads them all."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable

import pytest

from ingestd.http.app import BASE_PATH
from tests.support.daemon import Daemon, Shop
from tests.support.distribution import write_distribution

MOST = {"single": 41, "batch": 47}
"""The most modules of a request with one event, and of a batch of two, on the default configuration.

Raise a number only together with the reason: whoever changes the path reads one module more."""
REQUESTS = 8
EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}}

TRACER = '''
import json, os, sys, threading

from ingestd.api import hookimpl

calls = []
since = None


def trace(frame, event, argument):
    """Note the functions of ingestd, in all threads, from the first bytes of a request to its answer."""
    global since
    if event != "call":
        return
    module = frame.f_globals.get("__name__", "")
    name = frame.f_code.co_qualname
    if name == "FastConnection.buffer_updated" and since is None:  # the body may come behind the head
        since = []
    if since is not None and module.startswith("ingestd."):
        since.append(f"{module}:{name}")
        if name == "FastConnection.answer":
            calls.append(since)
            since = None


threading.setprofile(trace)  # before the stores start their threads


class Tracer:
    @hookimpl
    def startup(self):
        sys.setprofile(trace)

    @hookimpl
    def shutdown(self):
        sys.setprofile(None)
        threading.setprofile(None)
        with open(os.environ["TRACED"], "w") as file:
            json.dump(calls, file)
'''


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[list[str]]]:
    """The calls of each request of a kind, as `module:function`. All events are of one visitor."""
    folder = tmp_path_factory.mktemp("traced")
    site = write_distribution(
        folder / "site", "tracer", modules={"tracer": TRACER}, plugins={"tracer": "tracer:Tracer"}
    )
    shop = Shop(folder, tables={"plugins": 'also = ["tracer"]'})

    def trace(kind: str) -> list[list[str]]:
        written = folder / f"{kind}.json"
        with Daemon(shop.config, environment={"PYTHONPATH": str(site), "TRACED": str(written)}) as daemon:
            path, body = ("/track", EVENT) if kind == "single" else ("/batch", {"events": [EVENT, EVENT]})
            connection = http.client.HTTPConnection(daemon.host, daemon.port)
            for _ in range(REQUESTS):
                headers = {"Authorization": f"Bearer {shop.public.id}"}
                connection.request("POST", BASE_PATH + path, json.dumps(body), headers)
                answer = connection.getresponse()
                assert (answer.status, answer.read()[:16]) == (200, b'{"success":true,')
            connection.close()
            assert daemon.terminate() == 0, "\n".join(daemon.log)
        calls: list[list[str]] = json.loads(written.read_text())
        assert len(calls) == REQUESTS
        return calls[1:]  # the connection and the visitor are new in the first

    return trace


@pytest.mark.parametrize("kind", MOST)
def test_an_event_passes_few_modules(kind: str, traced: Callable[[str], list[list[str]]]) -> None:
    # What ran in every request: beside some of them a timer or a consumer was at work.
    always = set.intersection(*map(set, traced(kind)))
    modules: dict[str, list[str]] = {}
    for call in sorted(always):
        modules.setdefault(call.partition(":")[0], []).append(call.partition(":")[2])
    shown = "\n".join(f"{module}: {', '.join(functions)}" for module, functions in modules.items())
    assert len(modules) <= MOST[kind], f"{len(modules)} modules, {len(always)} functions:\n{shown}"
