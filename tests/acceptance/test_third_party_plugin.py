"""A third-party plugin, installed beside ingestd, in a daemon of the installed command."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, Reply, Shop, run_ingestd
from tests.support.distribution import write_distribution

TOKEN = "open sesame, all ye shops"

PLUGIN = '''
    """All additions of a plugin in one: authentication, enrichment, a filter, a sink, a consumer, a command."""

    import asyncio
    import json
    from pathlib import Path

    from ingestd.api import hookimpl
    from ingestd.api.options import Options
    from ingestd.api.consumer import Consumer
    from ingestd.api.errors import Limited
    from ingestd.api.events import Principal, Record
    from ingestd.api.sink import Sink


    class MirrorSink(Sink):
        class Options(Options):
            path: Path

        async def write(self, batch):
            with self.options.path.open("ab") as file:
                file.writelines(record.body + b"\\n" for record in batch)


    class Receipts(Consumer):
        name = "shop:receipts"

        async def process(self, records, step):
            for record in records:
                if record.type == "event":
                    receipt = {"id": f"receipt-{record.position}", "type": "receipt", "of": record.decode()["id"]}
                    step.append(Record("receipt", record.at, json.dumps(receipt).encode()))


    class ShopPlugin:
        class Options(Options):
            token: str

        def __init__(self, options):
            self.token = options.token

        @hookimpl
        def register_sinks(self, register):
            register("mirror", MirrorSink)

        @hookimpl
        def register_consumers(self, register):
            register(Receipts())

        @hookimpl
        def register_commands(self, commands):
            parser = commands.add("greet", "hello", greet, help="say hello")
            parser.add_argument("--name", default="shop")

        @hookimpl
        async def authenticate(self, request):
            await asyncio.sleep(0)
            if request.headers.get("x-shop-token") == self.token:
                return Principal("own-shop", "token")

        @hookimpl
        async def enrich(self, event, state):
            await asyncio.sleep(0)
            product = event.data.get("product_id")
            if product == "explodes":
                raise RuntimeError("the password of the warehouse is 1234")
            if product == "sold-out":
                raise Limited("Too many want this one.", code="sold_out", retry_after=7)
            event.context["warehouse"] = {"stock": 3}

        @hookimpl
        def filter_event(self, event):
            return "a robot" if event.context.get("robot") else None


    async def greet(arguments, daemon):
        print(f"hello {arguments.name}, {sum([await each.journal.last() for each in daemon.partitions])} records")
'''


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop whose daemon and commands find the plugin beside the installed ingestd."""
    site = write_distribution(
        tmp_path_factory.mktemp("site"),
        "shop-tools",
        version="2.5",
        modules={"shop_tools": PLUGIN},
        plugins={"shop_tools": "shop_tools:ShopPlugin"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        yield Shop(
            tmp_path_factory.mktemp("shop"),
            {
                "plugins": 'enabled = ["shop_tools", "keys", "hmac_auth", "identity", "session"]',
                "plugins.shop_tools": f'token = "{TOKEN}"',
                "sinks.mirror": 'type = "mirror"\npath = "mirror.jsonl"\nstart = "beginning"',
            },
        )


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


def view(product: str = "p-1", **members: Any) -> dict[str, Any]:
    return {"key": "Product Viewed", "anonymousId": "v", "data": {"product_id": product}, **members}


def post(daemon: Daemon, body: dict[str, Any], token: str | None = TOKEN) -> Reply:
    return daemon.post("/track", body, None, **({} if token is None else {"x_shop_token": token}))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def counted(daemon: Daemon, outcome: str, key: str = "Product Viewed") -> float:
    return daemon.metric(f'ingestd_events_total{{endpoint="track",key="{key}",outcome="{outcome}"}}')


def mirrored(shop: Shop) -> list[dict[str, Any]]:
    file = shop.folder / "mirror.jsonl"
    return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def test_it_adds_an_authentication_and_does_not_change_the_others(shop: Shop, daemon: Daemon) -> None:
    assert post(daemon, view()).json()["success"] is True
    assert daemon.post("/track", view(), shop.public.id).status == 200
    assert daemon.post_signed(view(), shop.server).status == 200
    assert post(daemon, view(), "wrong").status == 401
    assert post(daemon, view(), None).status == 401
    # A principal without grants is refused on other endpoints.
    assert daemon.post("/customer-events", view(), None, x_shop_token=TOKEN).status == 403
    tenants = {record["tenant"] for record in shop.exported("--type", "event")}
    assert tenants == {"own-shop", "shop"}


def test_it_enriches_stored_events(shop: Shop, daemon: Daemon) -> None:
    assert post(daemon, view(messageId="enriched", context={"page": {"url": "/"}})).status == 200
    (record,) = [each for each in shop.exported() if each.get("messageId") == "enriched"]
    assert record["context"] == {"page": {"url": "/"}, "warehouse": {"stock": 3}}


def test_events_that_it_drops_are_answered_and_counted_but_not_stored(shop: Shop, daemon: Daemon) -> None:
    before = counted(daemon, "dropped")
    answer = post(daemon, view(messageId="dropped", anonymousId="robot", context={"robot": True}))
    assert (answer.status, answer.json()["session"]["isNew"]) == (200, True)
    assert counted(daemon, "dropped") == before + 1
    # The visitor keeps the session, and the first stored event is answered with a new session.
    told = [post(daemon, view(anonymousId="robot")).json()["session"] for _ in range(2)]
    assert told == [answer.json()["session"], {**answer.json()["session"], "isNew": False}]
    assert not [each for each in shop.exported() if each.get("messageId") == "dropped"]


def test_its_errors_are_a_500_without_details_and_a_log_line_with_its_name(shop: Shop, daemon: Daemon) -> None:
    before = counted(daemon, "failed")
    answer = post(daemon, view("explodes", messageId="exploded"))
    assert answer.status == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.json()["code"] == "internal_error"
    for secret in (b"1234", b"warehouse", b"shop_tools", b"RuntimeError", b"enrich", b"Traceback"):
        assert secret not in answer.body
    assert counted(daemon, "failed") == before + 1
    daemon.read_log(1.0)
    log = "\n".join(daemon.log)
    assert "plugin shop_tools: enrich failed" in log
    assert "RuntimeError: the password of the warehouse is 1234" in log
    assert not [each for each in shop.exported() if each.get("messageId") == "exploded"]
    assert post(daemon, view()).status == 200


def test_a_refusal_that_it_raises_is_the_answer(daemon: Daemon) -> None:
    before = counted(daemon, "limited")
    answer = post(daemon, view("sold-out"))
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert (answer.json()["code"], answer.json()["detail"]) == ("sold_out", "Too many want this one.")
    assert counted(daemon, "limited") == before + 1


def test_its_sink_receives_every_record_in_order(shop: Shop, daemon: Daemon) -> None:
    assert post(daemon, view(messageId="mirrored")).status == 200
    wait_until(lambda: any(each.get("messageId") == "mirrored" for each in mirrored(shop)))
    wait_until(lambda: mirrored(shop) == shop.exported())
    assert daemon.metric('ingestd_sink_delivered_total{sink="mirror"}') == len(mirrored(shop))


def test_its_command_runs_beside_the_daemon(shop: Shop, daemon: Daemon) -> None:
    assert post(daemon, view()).status == 200
    printed = shop.command("greet", "hello", "--name", "Ann")
    assert re.fullmatch(r"hello Ann, [1-9]\d* records\n", printed)


def test_it_is_listed_with_its_origin(shop: Shop) -> None:
    rows = [json.loads(line) for line in shop.command("plugins", "list", "--json").splitlines()]
    assert Path(rows[0].pop("file")).name == "shop_tools.py"
    assert rows[0] == {
        "name": "shop_tools",
        "distribution": "shop-tools",
        "version": "2.5",
        "source": "shop_tools:ShopPlugin",
        "sinks": ["mirror"],
        "stores": [],
        "hooks": [
            "authenticate", "enrich", "filter_event", "register_commands", "register_consumers", "register_sinks",
        ],
    }  # fmt: skip
    assert [row["name"] for row in rows] == [
        "shop_tools", "keys", "hmac_auth", "identity", "session", "sqlite", "jsonl",
    ]  # fmt: skip
    assert {row["distribution"] for row in rows[1:]} == {"ingestd"}
    assert "shop-tools 2.5" in shop.command("plugins", "list")


def test_a_missing_required_option_stops_the_start(shop: Shop) -> None:
    config = shop.folder / "wrong.toml"
    config.write_text(shop.config.read_text().replace("token =", "tokne ="))
    done = run_ingestd("serve", config=config)
    assert done.returncode == 78
    assert "plugins.shop_tools.tokne: unknown option; did you mean plugins.shop_tools.token?" in done.stderr


def test_its_consumer_derives_one_record_for_each_event_despite_kills(tmp_path: Path, shop: Shop) -> None:
    own = Shop(tmp_path, shop.tables)
    accepted = 0
    for count in (1, 15, 40):
        with Daemon(own.config) as daemon:
            for number in range(count):
                assert post(daemon, view(anonymousId=f"v-{number}")).status == 200
                accepted += 1
            daemon.kill()
    with own.serve():
        wait_until(lambda: len(own.exported("--type", "receipt")) >= accepted)
    events = [record["id"] for record in own.exported("--type", "event")]
    assert len(events) == accepted
    assert [record["of"] for record in own.exported("--type", "receipt")] == events
    delivered = {record["id"] for record in mirrored(own)}
    assert delivered == {record["id"] for record in own.exported()}
