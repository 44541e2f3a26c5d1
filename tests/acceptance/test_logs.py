"""The log of the installed daemon: lines for people or machines, one id per request, and no secrets."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.clients import wait_until
from tests.support.daemon import BASE, Daemon, Shop, run_ingestd, sign
from tests.support.distribution import write_distribution
from tests.support.forked import INGESTD
from tests.support.rawhttp import Client, event, post, talk
from tests.support.terminal import terminal

# A plugin that logs secrets in many ways.
GOSSIP = """
    import asyncio
    import logging
    import warnings

    from ingestd.api import hookimpl
    from ingestd.api.sink import Sink

    log = logging.getLogger("gossip")


    class Leak(Sink):
        leaked = 0

        async def write(self, batch):
            if self.leaked < 3:
                self.leaked += 1
                raise ValueError(batch[0].body)


    def all_of(request):
        try:
            body = request.body
        except Exception as error:
            body = repr(error)
        headers = request.headers
        signature = headers.get("x-signature")
        return [
            dict(headers), list(headers.items()), headers, request.bearer(), f"{headers.get('Authorization')}",
            signature, str(signature).lower(), str(signature).upper(), body, str(body), body.decode("latin-1"),
        ]


    async def told_later(told):
        await asyncio.sleep(0)
        log.error("in a task: %s", told)


    class Gossip:
        @hookimpl
        def register_sinks(self, register):
            register("leak", Leak)

        @hookimpl
        async def authenticate(self, request):
            how = request.headers.get("x-gossip")
            if how is None:
                return
            told = all_of(request)
            if how == "log":
                for level in (logging.DEBUG, logging.INFO, logging.CRITICAL):
                    log.log(level, "%s", told)
                    log.log(level, *told[2:3])
                    log.log(level, told[4])
                log.info("%s", request)
                log.info("%d", told[3], stack_info=True)
            elif how == "task":
                await asyncio.create_task(told_later(told))
            elif how == "warn":
                warnings.warn(str(told))
            elif how == "chain":
                try:
                    raise KeyError(told[3])
                except KeyError:
                    raise ValueError("\\n".join(map(str, told)))
            else:
                raise RuntimeError(*told)
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop with the default format of the log. The daemon does not run on a terminal."""
    site = write_distribution(
        tmp_path_factory.mktemp("site"), "gossip", modules={"gossip": GOSSIP}, plugins={"gossip": "gossip:Gossip"}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        shop = Shop(
            tmp_path_factory.mktemp("shop"),
            {
                "logs": 'level = "debug"',
                "plugins": 'enabled = ["gossip", "keys", "hmac_auth", "identity", "session"]',
                "sinks.leak": 'type = "leak"\nstart = "beginning"',
            },
        )
        shop.config.write_text(shop.config.read_text().replace('format = "text"\n', ""))
        yield shop


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


def entries(daemon: Daemon) -> list[dict[str, Any]]:
    """All lines so far. Each line must be one JSON object."""
    daemon.read_log()
    return [msgspec.json.decode(line) for line in daemon.log]


def of_request(daemon: Daemon, request_id: str, *, until: int) -> list[dict[str, Any]]:
    """The lines of one request. Waits until there are `until` of them."""
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        found[:] = [entry for entry in entries(daemon) if entry.get("request_id") == request_id]
        return len(found) >= until

    wait_until(are_there)
    return found


# Lines


def test_away_from_a_terminal_every_line_is_a_json_object(daemon: Daemon) -> None:
    assert daemon.post("/track", event(), "no such key").status == 401
    for entry in entries(daemon):
        assert [*entry][:4] == ["time", "level", "logger", "message"]
        assert entry["level"] in {"debug", "info", "warning", "error", "critical"}


def test_the_id_in_the_answer_is_that_of_the_record(shop: Shop, daemon: Daemon) -> None:
    answers = [daemon.post("/track", event(), shop.public.id), daemon.post_signed(event(), shop.server)]
    assert [answer.status for answer in answers] == [200, 200]
    stored = [record["id"] for record in shop.exported()]
    assert [answer.headers["x-request-id"] for answer in answers] == stored[-2:]


def test_the_id_in_the_answer_is_in_every_line_of_the_request(shop: Shop, daemon: Daemon) -> None:
    answer = daemon.post("/track", event(), shop.public.id, x_gossip="raise")
    assert answer.status == 500
    failure, access = of_request(daemon, answer.headers["x-request-id"], until=2)
    assert (failure["level"], failure["logger"]) == ("error", "ingestd.pipeline")
    assert failure["exception"].startswith("Traceback")
    assert "RuntimeError" in failure["exception"]
    assert "plugin gossip: authenticate failed" in failure["exception"]
    assert (access["level"], access["logger"]) == ("warning", "ingestd.access")


def test_a_refusal_is_an_access_line(shop: Shop, daemon: Daemon) -> None:
    body = b'{"key": "Page View"}'
    answer = daemon.post("/track", body, shop.public.id)
    (line,) = of_request(daemon, answer.headers["x-request-id"], until=1)
    assert line["level"] == "info"
    assert line["message"].startswith("POST track 400 ")
    assert (line["method"], line["endpoint"], line["status"]) == ("POST", "track", 400)
    assert (line["code"], line["bytes"], line["peer"]) == (answer.json()["code"], len(body), "127.0.0.1")
    assert 0 < line["seconds"] < 20


def test_successful_requests_are_not_logged_unless_configured(shop: Shop, daemon: Daemon, tmp_path: Path) -> None:
    answer = daemon.post("/track", event(), shop.public.id)
    refused = daemon.post("/track", b"", shop.public.id)
    of_request(daemon, refused.headers["x-request-id"], until=1)
    assert answer.headers["x-request-id"] not in "\n".join(daemon.log)
    own = Shop(tmp_path, {"logs": "access_sample = 1\naccess_errors = false"})
    with own.serve() as curious:
        answer = curious.post("/track", event(), own.public.id)
        refused = curious.post("/track", b"", own.public.id)
    (line,) = [line for line in curious.log if "ingestd.access" in line]
    assert f"INFO ingestd.access [{answer.headers['x-request-id']}]: POST track 200 in " in line


def test_a_flood_of_refusals_is_logged_in_few_lines_that_count_all(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        assert len(talk(daemon.port, post("no such key", event()) * 300)) == 300
    lines = [line for line in daemon.log if "ingestd.access" in line]
    assert len(lines) < 200
    told = [line for line in lines if "more answers within a second (" in line]
    left_out = sum(int(line.partition("within a second (")[2].split()[0]) for line in told)
    assert len(lines) - len(told) + left_out == 300


def on_a_terminal(config: Path, **environment: str) -> str:
    """The output on a terminal of a daemon that cannot start."""
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with terminal() as (reading, writing):
        process = subprocess.Popen(
            [INGESTD, "serve", "--config", str(config)],
            stderr=writing, env={**inherited, "TERM": "xterm", **environment},
        )  # fmt: skip
        assert process.wait(60) == 78
        os.close(writing)
        return os.read(reading, 65536).decode()


def test_on_a_terminal_lines_are_for_people_with_optional_colours(tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text("[http]\nlisten = 7\n")
    assert " \x1b[31mERROR\x1b[0m ingestd: " in on_a_terminal(config)
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "Z ERROR ingestd: " in on_a_terminal(config, **environment)
    done = run_ingestd("serve", config=config)
    assert "http.listen" in json.loads(done.stderr)["message"]
    assert (
        "ERROR ingestd: " in run_ingestd("events", "export", config=config).stderr
    )  # the error of a command is always for people


# Secrets


def gossiping(key: str, secret: str, signature: str) -> Iterator[bytes]:
    """Requests to all endpoints with secrets in their usual places. A plugin logs everything that it sees."""
    body = event({"mine": key, "secret": secret, "said": f"Bearer {key} {signature}"})
    for path in ("/track", "/customer-events", "/identify/public"):
        for how in ("log", "task", "warn", "chain", "raise"):
            lines = [f"x-gossip: {how}", f"x-signature: {signature}", f"x-shop-token: {secret}", f"Cookie: k={key}"]
            for content in (body, gzip.compress(body), f"{key} {secret} {signature}".encode()):
                coding = ["Content-Encoding: gzip"] if content[:2] == b"\x1f\x8b" else []
                yield post(key, content, *lines, *coding, path=path)
            yield post(key, body, *lines, f"Authorization: Basic {secret}", path=path)


def in_odd_places(secret: str) -> Iterator[bytes]:
    """Requests, well-formed or not, with the secret in unusual places."""
    target, body = f"{BASE}/track", event()
    fields: list[dict[str, Any]] = [
        {"key": secret},
        {"anonymousId": secret},
        {"messageId": secret},
        {"sessionId": secret},
        {secret: secret},
    ]
    fields += [{"timestamp": secret}, {"context": secret}, {"userId": [secret]}, {"data": {secret: {"sku": secret}}}]
    yield from (post(secret, event(**each)) for each in fields)
    yield from (post(secret, each.encode()) for each in (secret, f'"{secret}', f'{{"{secret}": ', f'{{"key": {secret}'))
    for line in (
        f"{secret}: x", f"X-{secret}: {secret}", f"X {secret}: x", f"X: {secret}\x01", f"X: {secret}\r\n {secret}",
        f"Content-Type: {secret}", f"Content-Encoding: {secret}", f"Content-Length: {secret}", f"Origin: {secret}",
        f"Transfer-Encoding: {secret}", f"Expect: {secret}", f"Connection: {secret}", f"Host: {secret}",
        f"Authorization: {secret}", f"authorization: Basic {secret}", f"x-signature: {secret}", f"Cookie: {secret}",
        f"Authorization: Basic {base64.b64encode(secret.encode()).decode()}", f"X-Forwarded-For: {secret}", secret,
        f"X-Request-Id: {secret}",
    ):  # fmt: skip
        yield post(secret, body, line)
    for start in (
        f"POST {target}/{secret} HTTP/1.1", f"POST {target}?key={secret} HTTP/1.1", f"POST {target}#{secret} HTTP/1.1",
        f"GET /{secret} HTTP/1.1", f"{secret} {target} HTTP/1.1", f"POST {target} {secret}", f"POST {secret} HTTP/1.1",
        f"POST http://{secret}@shop{target} HTTP/1.1", f"OPTIONS {target}?{secret} HTTP/1.1", secret,
    ):  # fmt: skip
        yield f"{start}\r\nHost: shop\r\nContent-Length: 0\r\n\r\n".encode()
    for chunk in (
        f"{secret}\r\n",
        f"5;{secret}\r\nxxxxx\r\n0\r\n\r\n",
        f"5\r\nxxxxx{secret}",
        f"0\r\nX: {secret}\r\n\r\n",
    ):
        yield f"POST {target} HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}".encode()


def send(daemon: Daemon, request: bytes) -> None:
    """Sends the request, and reads all answers and the log. The daemon would block on a full pipe."""
    with Client(daemon.port) as client:
        with suppress(ConnectionError):
            client.send(request)
        client.finish_sending()
        client.end()
    daemon.read_log()


def test_no_secret_is_in_the_log_whoever_logs_it_and_wherever_it_was_sent(shop: Shop, daemon: Daemon) -> None:
    public, server, secret = shop.public.id, shop.server.id, shop.server.secret
    signature = sign(secret, b"something")
    for key in (public, server):
        for request in gossiping(key, secret, signature):
            send(daemon, request)
            send(daemon, request.replace(signature.encode(), signature.upper().encode()))
    for each in (public, server, secret, signature):
        for request in in_odd_places(each):
            send(daemon, request)
        for path in (f"/{each}", f"/metrics?{each}", f"/livez/{each}"):
            daemon.ops(path)
            daemon.request("POST", path, each.encode(), {"Authorization": each}, port=daemon.ops_port)
    # The consumer of the sink that quotes records has also tried again by then.
    wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="leak"}') == 0)
    lines = entries(daemon)
    told = {entry["logger"] for entry in lines}
    assert {"gossip", "py.warnings", "ingestd.pipeline", "ingestd.access", "ingestd.consumers"} <= told
    log = "\n".join(daemon.log).lower()
    assert log.count("***") > 100
    for each in (public, server, secret, signature, base64.b64encode(secret.encode()).decode()):
        assert each.lower() not in log


def test_text_from_a_caller_forges_no_line(tmp_path: Path) -> None:
    """In the text format, a line break could start a new line."""
    shop = Shop(tmp_path, {"plugins": 'enabled = ["keys", "hmac_auth", "identity", "session"]'})
    forged = "\n2026-11-21T04:00:00.000Z ERROR ingestd: forged\r\x1b[2J\u2028forged"
    with shop.serve() as daemon:
        for each in (event(key=forged), event(anonymousId=[forged]), event(**{forged: forged}), forged.encode()):
            daemon.post("/track", each, shop.public.id)
        for line in ("\x85", "\x0b", "\x0c", "\x1c"):
            talk(daemon.port, post(f"{line}2026-11-21T04:00:00.000Z ERROR ingestd: forged", event()))
    assert not [line for line in daemon.log if "forged" in line]
