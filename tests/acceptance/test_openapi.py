"""The OpenAPI document of a running daemon, and the daemon's answers to requests that are made from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, Shop, run_ingestd

ROOT = Path(__file__).parents[2]
SCHEMATHESIS = str(Path(sys.executable).with_name("schemathesis"))

GIFT_WRAPPED: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:shop:schema:gift_wrapped",
    "title": "Gift Wrapped",
    "description": "Sent when a customer has an item of the cart wrapped.",
    "type": "object",
    "required": ["item"],
    "properties": {"item": {"$ref": "urn:ingestd:definition:product_with_quantity"}},
}


@pytest.fixture
def own_schemas(tmp_path: Path) -> Shop:
    """A shop with an empty directory of schemas."""
    (tmp_path / "schemas").mkdir()
    return Shop(tmp_path, {"schemas": 'directory = "schemas"'})


def add_gift_wrapped(shop: Shop) -> None:
    (shop.folder / "schemas" / "gift_wrapped.json").write_text(json.dumps(GIFT_WRAPPED))


def server_of(daemon: Daemon) -> str:
    """The address that the daemon listens on: the configuration asks for any free port."""
    return f"http://{daemon.host}:{daemon.port}"


@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=pytest.mark.long)])
def test_schemathesis_finds_no_deviation_of_the_daemon_from_its_document(own_schemas: Shop, examples: int) -> None:
    """Thousands of requests are the same in each run, and so many for each operation are random."""
    add_gift_wrapped(own_schemas)
    with own_schemas.serve() as daemon:
        done = subprocess.run(
            [
                SCHEMATHESIS, "--config-file", str(ROOT / "tests/data/schemathesis.toml"), "run",
                f"http://127.0.0.1:{daemon.ops_port}/openapi.json", "--url", server_of(daemon),
                "--max-examples", str(examples),
            ],
            cwd=own_schemas.folder,
            # Few variables, because `requests` reads all of them twice for each request. Hypothesis keeps its tables of
            # characters, which take a second to make.
            env={
                "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT),
                "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"), "PUBLIC_KEY": own_schemas.public.id,
                "SERVER_KEY": own_schemas.server.id, "SERVER_SECRET": own_schemas.server.secret,
            },
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        assert "Tested: 6" in done.stdout
        assert daemon.metric('ingestd_events_total{endpoint="track",key="Gift Wrapped",outcome="accepted"}') > 0


def test_the_daemon_serves_what_the_command_prints(shop: Shop, daemon: Daemon) -> None:
    answer = daemon.ops("/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert "access-control-allow-origin" not in answer.headers
    assert answer.body.decode() == shop.command("openapi", "--server", server_of(daemon))
    again = daemon.request(
        "GET", "/openapi.json", headers={"If-None-Match": answer.headers["etag"]}, port=daemon.ops_port
    )
    assert again.status == 304


def test_the_output_does_not_depend_on_the_process(shop: Shop) -> None:
    command = [str(Path(sys.executable).with_name("ingestd")), "openapi", "--config", str(shop.config)]
    outputs = {
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_the_daemon_serves_the_schemas_of_its_generation(own_schemas: Shop) -> None:
    name = '"GiftWrappedEvent"'
    with own_schemas.serve() as daemon:
        assert name not in daemon.ops("/openapi.json").body.decode()
        add_gift_wrapped(own_schemas)
        assert name not in daemon.ops("/openapi.json").body.decode()
        own_schemas.command("reload")
        document = daemon.ops("/openapi.json").json()
    assert "GiftWrappedEvent" in document["components"]["schemas"]
    assert document == json.loads(own_schemas.command("openapi", "--server", server_of(daemon)))


@pytest.mark.parametrize("server", ["https://events.shop.example", "http://localhost:8080/in", "http://[::1]/"])
def test_the_command_names_the_public_server(shop: Shop, server: str) -> None:
    document = json.loads(shop.command("openapi", "--server", server))
    assert document["servers"] == [{"url": server.rstrip("/")}]


@pytest.mark.parametrize("server", ["", "events.shop.example", "ftp://shop.example", "https://a b", "https://a?b=c"])
def test_a_server_that_is_no_url_is_refused(shop: Shop, server: str) -> None:
    done = run_ingestd("openapi", "--server", server, config=shop.config)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected a URL such as https://events.shop.example" in done.stderr


def test_a_faulty_schema_of_the_shop_is_reported(own_schemas: Shop) -> None:
    (own_schemas.folder / "schemas" / "broken.json").write_text("{")
    done = run_ingestd("openapi", config=own_schemas.config)
    assert (done.returncode, done.stdout) == (78, "")
    assert "broken.json: line 1" in done.stderr
