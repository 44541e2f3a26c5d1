"""`ingestd events export` beside a running daemon: selection, following and refusals."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE, Daemon, Shop, run_ingestd
from tests.support.forked import INGESTD, Command
from tests.support.redis_shop import redis_shop


@dataclass
class Site:
    shop: Shop
    daemon: Daemon

    def send(self, anonymous: str, key: str = "Page View", **members: Any) -> None:
        body = {"key": key, "anonymousId": anonymous, "data": {}, **members}
        assert self.daemon.post("/track", body, self.shop.public.id).status == 200

    def selected(self, *arguments: str) -> list[tuple[str, str | None]]:
        """Type and key of each record."""
        return [(record["type"], record.get("key")) for record in self.shop.exported(*arguments)]


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("shop")
    with ExitStack() as stack:
        shop = Shop(folder) if request.param == "sqlite" else stack.enter_context(redis_shop(folder))
        site = Site(shop, stack.enter_context(shop.serve()))
        site.send("v-1")
        identify = {"anonymousId": "v-1", "userId": "ada"}
        assert site.daemon.post("/identify/public", identify, shop.public.id).status == 200
        site.send("v-1", "Order Completed", data={"order_id": "o-1", "total": 5})
        site.send("v-2", "Order Completed", data={"order_id": "o-2", "total": 5})
        site.send("v-2", "Product Viewed")
        wait_until(lambda: len(shop.exported("--type", "attribution")) == 2)
        yield site


@contextmanager
def following(shop: Shop, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [INGESTD, "events", "export", "--follow", *arguments, "--config", str(shop.config)]
    with Command(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()


def next_record(running: subprocess.Popen[bytes]) -> Any:
    """The next line, which must arrive while the command runs."""
    assert running.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([running.stdout], [], [], PATIENCE)[0]
        line += os.read(running.stdout.fileno(), 1)
    return json.loads(line)


def unread(pipe: int) -> int:
    """The number of bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def refusal(shop: Shop, *arguments: str, code: int) -> str:
    done = run_ingestd("events", "export", *arguments, config=shop.config)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_records_are_selected_by_key_person_order_and_tenant(site: Site) -> None:
    order, view = ("event", "Order Completed"), ("event", "Page View")
    assert site.selected("--key", "Order Completed") == [order, order]
    assert site.selected("--key", "Page View", "--key", "Product Viewed") == [view, ("event", "Product Viewed")]
    assert site.selected("--anonymous", "v-1")[:3] == [view, ("identify", None), order]
    assert [each for each in site.selected("--user", "ada") if each[0] != "attribution"] == [("identify", None), order]
    assert site.selected("--order", "o-2") == [order, ("attribution", None)]
    assert site.selected("--order", "o-2", "--type", "attribution") == [("attribution", None)]
    assert site.selected("--tenant", "shop") == site.selected()
    assert site.selected("--tenant", "another") == site.selected("--user", "nobody") == []


def test_a_time_and_a_number_bound_the_output(site: Site) -> None:
    everything = site.shop.exported("--type", "event")
    third = everything[2]["receivedAt"]
    before = site.shop.exported("--type", "event", "--until", third)
    assert before == [record for record in everything if record["receivedAt"] < third]
    assert before + site.shop.exported("--type", "event", "--since", third) == everything
    assert site.shop.exported("--type", "event", "--limit", "3") == everything[:3]
    assert site.shop.exported("--type", "event", "--limit", "99") == everything


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--type", "evnt"], 1, "no record has the type 'evnt'; did you mean event?"),
        (["--type", "Identify"], 1, "did you mean identify?"),
        (["--type", "xyzzy"], 1, "known: attribution, attribution_reversal, erasure, event, identify"),
        (["--key", "order completed"], 1, "there is no event key 'order completed'; did you mean Order Completed?"),
        (["--key", "Page View", "--key", "Pageview"], 1, "did you mean Page View?"),
        (["--key", "Pageview", "--follow"], 1, "did you mean Page View?"),
        (["--limit", "0"], 2, "--limit: expected a whole number from 1"),
        (["--until", "noon"], 2, "--until: expected an RFC 3339 time or an age such as 2h"),
        (["--follow", "--until", "1h"], 2, "--follow never ends, so it cannot be used with --until"),
    ],
)
def test_unknown_values_are_refused_with_the_nearest_known_one(
    site: Site, arguments: list[str], code: int, message: str
) -> None:
    assert message in refusal(site.shop, *arguments, code=code)


def test_a_known_type_or_key_without_records_is_no_error(site: Site) -> None:
    assert site.selected("--type", "erasure") == site.selected("--key", "Cart Shared") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_continues_with_new_records_until_a_signal(site: Site, number: signal.Signals) -> None:
    with following(site.shop, "--key", "Page View", "--since", "0s") as running:
        assert running.stdout is not None
        site.send(f"first-{number}")
        while not select.select([running.stdout], [], [], 0.2)[0]:  # the command does not follow yet
            site.send(f"first-{number}")
        site.send(f"other-{number}", "Product Viewed")
        site.send(f"last-{number}")
        while next_record(running)["anonymousId"] != f"last-{number}":
            pass
        running.send_signal(number)
        assert running.wait(PATIENCE) in {-number, 128 + number}
        assert running.stderr is not None
        assert running.stderr.read() == b""


def test_following_ends_after_its_limit(site: Site) -> None:
    with following(site.shop, "--key", "Cart Viewed", "--limit", "2") as running:
        site.send("v-3", "Cart Viewed")
        assert next_record(running)["anonymousId"] == "v-3"
        assert running.poll() is None
        site.send("v-4", "Cart Viewed")
        assert next_record(running)["anonymousId"] == "v-4"
        assert running.wait(PATIENCE) == 0


def test_following_without_records_ends_quietly_when_its_reader_has_ended(site: Site) -> None:
    with following(site.shop, "--limit", "99") as running:
        next_record(running)
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(PATIENCE) == 0
        assert running.stderr is not None
        assert running.stderr.read() == b""


def test_types_and_keys_that_only_the_journal_has_are_selected(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:shop:schema:rental_begun",
        "title": "Rental Begun", "type": "object",
    }  # fmt: skip
    (tmp_path / "schemas" / "rental_begun.json").write_text(json.dumps(schema))
    shop = Shop(tmp_path, {"schemas": 'directory = "schemas"'})
    with shop.serve() as daemon:
        Site(shop, daemon).send("v-1", "Rental Begun")
    (tmp_path / "schemas" / "rental_begun.json").unlink()
    assert [record["key"] for record in shop.exported("--key", "Rental Begun")] == ["Rental Begun"]
    assert "did you mean Rental Begun" not in refusal(shop, "--key", "Rental Begum", code=1)


# Wrong command lines


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("serv", "there is no command 'serv'; did you mean serve?"),
        ("event export", "there is no command 'event'; did you mean events?"),
        ("events exprot", "there is no command 'exprot'; did you mean export?"),
        ("keys crate", "there is no command 'crate'; did you mean create?"),
        ("sinks dead-letters lst crm", "there is no command 'lst'; did you mean list?"),
        ("frobnicate", "there is no command 'frobnicate'; known: serve, "),
        ("events export --folow", "unrecognized arguments: --folow"),
    ],
)
@pytest.mark.parametrize("with_configuration", [True, False])
def test_a_mistyped_command_is_refused_with_the_nearest_one(
    tmp_path: Path, command: str, message: str, *, with_configuration: bool
) -> None:
    config = None
    if with_configuration:
        config = tmp_path / "ingestd.toml"
        config.write_text('[store]\nurl = "sqlite:ingestd.db"\n')
    done = run_ingestd(*command.split(), config=config, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]


def test_a_faulty_configuration_is_reported_before_an_unknown_command_that_a_plugin_may_add(tmp_path: Path) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text("[stor]\n")
    done = run_ingestd("warehouse", config=config)
    assert done.returncode == 78
    assert "stor: unknown option" in done.stderr
    done = run_ingestd("serv", config=config)
    assert done.returncode == 2
    assert "did you mean serve?" in done.stderr


def test_an_export_that_is_suspended_while_it_writes_loses_nothing(tmp_path: Path) -> None:
    """Python without buffers takes a write that ends early for the whole."""
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        for number in range(50):
            body = {"key": "Page View", "anonymousId": f"v-{number}", "data": {"long": "x" * 9000}}
            assert daemon.post("/track", body, shop.public.id).status == 200
        command = [INGESTD, "events", "export", "--config", str(shop.config)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as running:
            pipe = running.stdout
            assert pipe is not None
            # Then the pipe has no room for another record.
            wait_until(lambda: unread(pipe.fileno()) > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 9000)
            running.send_signal(signal.SIGSTOP)
            wait_until(lambda: Path(f"/proc/{running.pid}/stat").read_text().rpartition(") ")[2].startswith("T"))
            running.send_signal(signal.SIGCONT)
            time.sleep(0.1)  # the write ends early before the pipe has room again
            lines = pipe.read().splitlines()
        assert running.returncode == 0
        assert [json.loads(line)["anonymousId"] for line in lines] == [f"v-{number}" for number in range(50)]
