"""Options of Redis for operators: faults that stop the start, messages of commands, and hidden secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, run_ingestd
from tests.support.journeys import HOUR, IDENTIFY, SERVER, TRACK, Sender, attributions
from tests.support.ports import free_port
from tests.support.redis_contents import redis_contents
from tests.support.redis_pieces import entries_of_journal
from tests.support.redis_server import RedisServer, redis_server
from tests.support.redis_shop import RedisShop, redis_shop

SECRET = "pa55-w0rd"
SENTINELS_SECRET = "s3nt1nel"


@dataclass
class Configured:
    """A configuration with a Redis, and methods that run commands with it."""

    config: Path
    server: RedisServer

    def write(self, url: str | None = None, redis: str = "") -> None:
        listen = '[http]\nlisten = "127.0.0.1:0"\n[ops]\nlisten = "127.0.0.1:0"\n'
        self.config.write_text(f'{listen}[store]\nurl = "{url or self.server.url}"\n[plugins.redis]\n{redis}\n')

    def run(self, *arguments: str) -> CompletedProcess[str]:
        return run_ingestd(*arguments, config=self.config)

    def refused(self, code: int, *arguments: str) -> str:
        """The last line of a command that ends with this code. Without arguments the command is `serve`."""
        done = self.run(*(arguments or ("serve",)))
        assert done.returncode == code, done.stderr
        return done.stderr.splitlines()[-1]

    @contextmanager
    def set(self, **options: str) -> Iterator[None]:
        """Sets options of the server inside the block. `_` stands for `-`."""
        with self.server.client() as client:
            for name, value in options.items():
                before = client.config_get(name.replace("_", "-"))
                client.config_set(name.replace("_", "-"), value)
            try:
                yield
            finally:
                for name in options:
                    client.config_set(name.replace("_", "-"), before[name.replace("_", "-")])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "everysec"}) as server:
        yield server


@pytest.fixture
def configured(tmp_path: Path, server: RedisServer) -> Configured:
    found = Configured(tmp_path / "ingestd.toml", server)
    found.write()
    return found


@contextmanager
def serving(configured: Configured) -> Iterator[Daemon]:
    with Daemon(configured.config) as daemon:
        yield daemon
        assert daemon.terminate() == 0, "\n".join(daemon.log)


# Faults that stop the start


@pytest.mark.parametrize(
    "option",
    [
        'prefix = ""',
        f'prefix = "{"x" * 65}"',
        "wait_replicas = -1",
        'sentinels = ["nonsense"]',
        'timeout = "0s"',
        'patience = "3"',
        'accept_loss = "yes"',
        'sentinel_password = ""',
        "nonsense = 1",
    ],
)
def test_a_bad_option_is_named(configured: Configured, option: str) -> None:
    configured.write(redis=option)
    assert f"{configured.config}: plugins.redis.{option.partition(' ')[0]}: " in configured.refused(78)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host:notaport", "a number as the port"),
        ("redis://127.0.0.1/shop", "the number of a database"),
        ("redis:127.0.0.1", "expected redis://host:port/db"),
        ("unix://", "the path of a socket"),
        ("redis://127.0.0.1/0?nonsense=1", "nonsense"),
        ("redis://127.0.0.1/0?socket_timeout=soon", "socket_timeout"),
        # Passwords with characters that should have been escaped.
        (f"redis://user:{SECRET}/@host/0", "%2F"),
        (f"redis://user:{SECRET}?@host/0", "%2F"),
        (f"redis://user:{SECRET}\N{ACCOUNT OF}@host/0", "%2F"),
        (f"redis://user:6379/{SECRET}@host/0", "the number of a database"),
    ],
)
def test_a_bad_url_is_reported_without_its_secrets(configured: Configured, url: str, said: str) -> None:
    configured.write(url)
    last = configured.refused(78)
    assert f"{configured.config}: store.url: " in last
    assert said in last
    assert SECRET not in last
    assert SECRET not in configured.refused(78, "check")


@pytest.mark.parametrize("store", ["sqlite:ingestd.db", "{url}"])
def test_a_shared_journal_needs_the_state_in_the_same_store(configured: Configured, store: str) -> None:
    url = configured.server.url
    configured.write(store.format(url=url.replace("/0", "/1")))
    with configured.config.open("a") as config:
        config.write(f'[journal]\nurl = "{url}"\n')
    for command in ("serve", "check"):
        last = configured.refused(78, command)
        assert f"{configured.config}: journal.url: " in last
        assert "leave [journal] url out" in last


def test_a_missing_database_is_named(configured: Configured) -> None:
    configured.write(configured.server.url.replace("/0", "/99"))
    assert "DB index is out of range" in configured.refused(78)


def test_a_wrong_password_is_reported_but_not_shown(configured: Configured) -> None:
    configured.write(configured.server.url.replace("://", f"://user:{SECRET}@"))
    for command in ("serve", "check", "keys"):
        done = configured.run(*((command, "list") if command == "keys" else (command,)))
        assert done.returncode == 78
        assert "Redis refuses access" in done.stderr
        assert SECRET not in done.stdout + done.stderr


def test_missing_rights_of_a_user_are_named(configured: Configured) -> None:
    with configured.server.client() as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", f">{SECRET}", "~*", "+@all", "-evalsha")
    configured.write(configured.server.url.replace("://", f"://poor:{SECRET}@"))
    last = configured.refused(78)
    assert "evalsha" in last
    assert SECRET not in last


@pytest.mark.parametrize(
    ("option", "value", "cure"),
    [
        ("appendonly", "no", "Set appendonly yes"),
        ("maxmemory_policy", "allkeys-lru", "Set maxmemory-policy noeviction"),
    ],
)
def test_a_server_that_may_lose_writes_is_refused_unless_accepted(
    configured: Configured, option: str, value: str, cure: str
) -> None:
    with configured.set(**{option: value}):
        for command in ("serve", "check"):
            last = configured.refused(78, command)
            assert f"{option.replace('_', '-')} {value}" in last
            assert cure in last
            assert "[plugins.redis] accept_loss = true" in last
        assert configured.run("keys", "list").returncode == 0  # commands that do not depend on durability work
        configured.write(redis="accept_loss = true")
        with serving(configured) as daemon:
            assert daemon.ops("/readyz").status == 200
            assert daemon.metric("ingestd_redis_durability_known") == 1
        assert configured.run("check").returncode == 0


def test_an_unreachable_server_may_come_back(configured: Configured) -> None:
    port = free_port()
    for url, options in (
        (f"redis://user:{SECRET}@127.0.0.1:{port}/0?password={SECRET}", ""),
        (
            f"redis://user:{SECRET}@shop/0",
            f'sentinels = ["127.0.0.1:{port}"]\nsentinel_password = "{SENTINELS_SECRET}"',
        ),
        ("unix:///nowhere/redis.sock", ""),
    ):
        configured.write(url, options)
        for command in (("serve",), ("check",), ("events", "export"), ("forget", "--user", "ann")):
            done = configured.run(*command)
            assert done.returncode == 75
            assert "Redis cannot be reached" in done.stderr.splitlines()[-1]
            for secret in (SECRET, SENTINELS_SECRET, "redis.asyncio"):
                assert secret not in done.stdout + done.stderr


def test_the_configuration_is_shown_without_secrets(configured: Configured) -> None:
    url = f"redis://user:{SECRET}@127.0.0.1:1/0?password={SECRET}&ssl_password={SECRET}"
    configured.write(url, f'sentinel_password = "{SENTINELS_SECRET}"\nsentinels = ["127.0.0.1:1"]')
    for arguments in (("config", "show"), ("config", "show", "--json")):
        done = configured.run(*arguments)
        assert done.returncode == 0
        assert "redis://user:***@127.0.0.1:1/0?password=***&ssl_password=***" in done.stdout
        for secret in (SECRET, SENTINELS_SECRET):
            assert secret not in done.stdout + done.stderr


# Replicas


def test_an_answer_waits_for_replicas(tmp_path: Path) -> None:
    quick = {"plugins.redis": 'wait_replicas = 1\ntimeout = "500ms"\npatience = "1s"'}
    with redis_server(tmp_path / "primary", {"repl-diskless-sync-delay": "0"}) as primary:
        options = {"replicaof": f"127.0.0.1 {primary.port}"}
        with redis_server(tmp_path / "replica", options) as replica, replica.client() as client:
            with primary.client() as writer:
                wait_until(lambda: bool(writer.set("ready", "")) and writer.wait(1, 500) == 1)
            shop = RedisShop(tmp_path, quick, redis=primary)
            with shop.serve() as daemon:
                sender = Sender(shop, daemon)
                for number in range(5):
                    identity = sender.send(TRACK, f"visitor-{number}")
                    # The replica has the event as soon as it is answered.
                    assert json.loads(entries_of_journal(client, "ingestd:")[-1][b"b"])["id"] == identity
                replica.kill()
                refused = daemon.post(TRACK, {"key": "Page View", "anonymousId": "visitor", "data": {}}, shop.public.id)
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
                wait_until(lambda: "NOREPLICAS" in daemon.ops("/readyz").body.decode())
                commands_read_on(shop.config)
                replica.start()
                wait_until(lambda: daemon.ops("/readyz").status == 200)
                sender.send(TRACK, "visitor")


def commands_read_on(config: Path) -> None:
    """Commands work while the replica is away, unless they write. Those give the operator the reason."""
    exported = run_ingestd("events", "export", config=config)
    assert exported.returncode == 0
    assert len(exported.stdout.splitlines()) in {5, 6}, "the refused event may have been stored"
    assert run_ingestd("sinks", "status", config=config).returncode == 0
    checked = run_ingestd("check", config=config)
    assert checked.returncode == 75
    assert "replicas: Redis has 0 replicas and wait_replicas is 1: events get 503" in checked.stderr
    created = run_ingestd("keys", "create", "--kind", "public", "--tenant", "other", config=config)
    assert created.returncode == 75
    assert "NOREPLICAS 0 of 1 replicas have it" in created.stderr
    assert "Send the request again" not in created.stderr


# Commands with and without daemons


def test_check_beside_daemons_and_without(tmp_path: Path) -> None:
    def check(code: int = 0) -> dict[str, dict[str, Any]]:
        done = run_ingestd("check", "--json", config=shop.config)
        assert done.returncode == code, done.stdout + done.stderr
        return {each["name"]: each for each in json.loads(done.stdout)["store"]}

    with redis_shop(tmp_path, {"plugins.redis": 'timeout = "500ms"\npatience = "1s"'}) as shop:
        found = check()
        assert {name: each["status"] for name, each in found.items()} == dict.fromkeys(
            ("server", "durability", "daemon", "write"), "ok"
        )
        assert "none is running" in found["daemon"]["text"]
        with shop.serve() as first, shop.serve() as second:
            found = check()
            assert "2 running" in found["daemon"]["text"]
            assert found["daemon"]["pid"] in {first.pid, second.pid}
            with shop.redis.client() as client:
                client.config_set("appendonly", "no")
                assert check(78)["durability"]["status"] == "broken"
                client.config_set("appendonly", "yes")
                client.config_set("maxmemory", "1")
                found = check(75)
                assert (found["write"]["status"], found["durability"]["status"]) == ("unavailable", "ok")
                assert "maxmemory" in found["write"]["text"]
                client.config_set("maxmemory", "0")
            wait_until(lambda: first.ops("/readyz").status == second.ops("/readyz").status == 200)
        assert "none is running" in check()["daemon"]["text"]
        shop.redis.kill()
        assert "cannot be reached" in check(75)["store"]["text"]


def test_commands_beside_daemons(tmp_path: Path) -> None:
    with redis_shop(tmp_path) as shop, shop.serve() as one, shop.serve() as other:
        sent = [Sender(shop, daemon).send(TRACK, "visitor") for daemon in (one, other, one)]
        assert [record["id"] for record in shop.exported()] == sent
        assert shop.exported("--type", "identify") == []
        assert len(shop.exported("--since", "1h")) == 3
        key = shop.create_key("public", "other")
        assert key.id in shop.command("keys", "list")
        shop.command("keys", "revoke", key.id)


# Forgetting


def forget_zoe(shop: RedisShop, *whom: str) -> None:
    told = json.loads(shop.command("forget", *whom, "--json"))
    assert told["counts"]["records"] > 0


def traces(shop: RedisShop, *private: str) -> dict[str, list[str]]:
    """The private texts by the Redis keys that contain them, without erasures, which name the forgotten person."""
    with shop.redis.client() as client:
        return {
            key: found
            for key, values in redis_contents(client).items()
            if (
                found := [
                    text
                    for text in private
                    for value in values
                    if text.encode() in value and b'"type":"erasure"' not in value
                ]
            )
        }


@pytest.mark.parametrize("beside", [True, False], ids=["beside daemons", "without"])
def test_a_person_is_forgotten_by_redis(tmp_path: Path, *, beside: bool) -> None:
    with redis_shop(tmp_path) as shop:
        with Daemon(shop.config) as daemon:
            sender = Sender(shop, daemon)
            for device in ("zoe-phone", "zoe-laptop"):
                sender.touch(device, HOUR, "google", dispatchId="zoe-mail")
                sender.send(IDENTIFY, device, userId="zoe-user", traits={"email": "zoe@shop.example"})
                sender.send(TRACK, device, messageId=f"m-{device}")
            sender.order("zoe-phone", "o-zoe", revenue=40)
            sender.touch("bob", HOUR, "bing")
            attributions(shop, ["o-zoe"])
            assert {*traces(shop, "zoe")} >= {"ingestd:journal:1"}
            if beside:
                forget_zoe(shop, "--user", "zoe-user")
            assert daemon.terminate() == 0
        if not beside:
            forget_zoe(shop, "--user", "zoe-user")
        with shop.serve() as daemon:
            sender = Sender(shop, daemon)
            sender.send(SERVER, "bob", key="Order Completed", data={"order_id": "o-bob"})
            assert attributions(shop, ["o-bob"])["o-bob"]["touchpoint"]["source"] == "bing"
            assert traces(shop, "zoe-phone", "zoe-laptop", "zoe-user", "zoe-mail", "zoe@shop.example") == {}
            records = shop.exported()
        assert sum(record["type"] == "erasure" for record in records) == 1
        assert [record["orderId"] for record in records if record["type"] == "attribution"] == ["o-zoe", "o-bob"]
