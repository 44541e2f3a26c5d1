"""Clocks that jump or differ, by libfaketime: nothing ends too soon, and operators learn of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.times import parse_time
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.faketime import faked, faked_redis
from tests.support.forked import INGESTD, short_times
from tests.support.redis_server import RedisServer, redis_server
from tests.support.redis_shop import RedisShop, redis_shop

PARTITIONS = 64
CLUSTER = """
[http]
listen = "127.0.0.1:0"
[ops]
listen = "127.0.0.1:0"
[store]
url = "{url}"
[plugins.redis]
partitions = 64
timeout = "5s"
"""
DAY, HOUR = 86_400_000, 3_600_000


def track(shop: Shop, daemon: Daemon, **members: str) -> dict[str, Any]:
    answer = daemon.post("/track", {"key": "Page View", "anonymousId": "v", "data": {}, **members}, shop.public.id)
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    return found


def logged(daemon: Daemon, text: str) -> bool:
    daemon.read_log()
    return any(text in line for line in daemon.log)


def received(shop: Shop) -> int:
    at = parse_time(shop.stored()[-1]["receivedAt"])
    assert at is not None
    return at


def test_a_jump_ends_nothing_until_the_time_is_confirmed(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'keep_for = "1d"', "ops": 'show_data = "all"'})
    clock = tmp_path / "clock"
    clock.write_text("+0")
    environment = faked(FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1")
    with Daemon(shop.config, environment=environment) as daemon:
        first = track(shop, daemon, messageId="m-1")
        began = received(shop)
        clock.write_text("+400d")
        assert track(shop, daemon, messageId="m-1") == first  # also before the daemon has looked
        wait_until(lambda: logged(daemon, "d ahead. The daemon goes on by"))
        assert track(shop, daemon)["session"] == {**first["session"], "isNew": False}
        assert received(shop) - began < HOUR
        assert 399 * 86_400 < daemon.metric("ingestd_clock_jump_seconds") < 401 * 86_400
        assert "d ahead, which the daemon does not follow" in daemon.ops("/readyz").body.decode()
        assert (
            "d ahead, which the daemon does not follow" in daemon.ops("/status.json").json()["problem"]
        )  # on the page
        clock.write_text("+0")
        wait_until(lambda: logged(daemon, "the system's clock is back"))
        assert daemon.metric("ingestd_clock_jump_seconds") == 0
        assert len(shop.stored()) == 2
        clock.write_text("+5.5s")  # ages are rounded down
        wait_until(lambda: logged(daemon, "the system's clock has jumped 5 s ahead, and the daemon follows it"))
        clock.write_text("+3h")
        wait_until(lambda: logged(daemon, "the system's clock has jumped 2 h ahead"))
        assert run_ingestd("reload", config=shop.config).returncode == 0
        wait_until(lambda: logged(daemon, "the time is confirmed"))
        assert daemon.metric("ingestd_clock_jump_seconds") == 0
        track(shop, daemon)
        assert received(shop) - began > 2 * HOUR


def test_a_start_with_a_clock_ahead_of_redis_removes_no_young_record_until_it_is_right(tmp_path: Path) -> None:
    with redis_shop(tmp_path, {"journal": 'keep_for = "5m"'}) as shop:
        with Daemon(shop.config, environment=faked(FAKETIME="-630s")) as behind:
            track(shop, behind, anonymousId="old")
        with Daemon(shop.config, arguments=("--set", "journal.keep_for=1d")) as right:
            track(shop, right, anonymousId="young")
        clock = tmp_path / "clock"
        clock.write_text("+630s")
        with Daemon(shop.config, environment=faked(FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1")) as ahead:
            wait_until(lambda: [record["anonymousId"] for record in shop.stored()] == ["young"])
            before = received(shop)
            wait_until(lambda: logged(ahead, "the clock of the store's server is 10 min behind this daemon's"))
            clock.write_text("+0")
            wait_until(lambda: logged(ahead, "the system's clock has jumped 10 min back, and the daemon follows it"))
            track(shop, ahead)
            assert 0 <= received(shop) - before < 600_000
            assert ahead.metric("ingestd_store_losses_total") == 0  # the clock of Redis was right


def test_a_daemon_and_a_redis_whose_clocks_differ_are_told(tmp_path: Path) -> None:
    with redis_shop(tmp_path) as shop:
        environment = faked(FAKETIME="+630s")
        with Daemon(shop.config, environment=environment) as ahead:
            wait_until(lambda: logged(ahead, "the clock of the store's server is 10 min behind this daemon's"))
            assert -631 < ahead.metric("ingestd_store_clock_ahead_seconds") < -620
        checked = subprocess.run(
            [INGESTD, "check", "--json", "--config", str(shop.config)],
            capture_output=True, text=True, check=False, env={**os.environ, **environment},
        )  # fmt: skip
        assert "Redis' clock is" in checked.stdout
        with shop.serve() as right:
            wait_until(lambda: right.metric("ingestd_redis_batches_total") > 5)
            assert right.metric("ingestd_store_clock_ahead_seconds") == 0
            assert not logged(right, "clock")


@contextmanager
def redis_by_clock(folder: Path, clock: Path, **options: str) -> Iterator[RedisServer]:
    """A server whose clock is written in a file."""
    environment = faked_redis(FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with redis_server(folder, {name.replace("_", "-"): value for name, value in options.items()}) as server:
            patch.undo()
            yield server


def test_entries_that_redis_removes_by_a_wrong_clock_are_a_loss(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    with redis_by_clock(tmp_path / "redis", clock) as redis:
        shop = RedisShop(tmp_path, redis=redis)
        with shop.serve() as first, shop.serve() as second:
            track(shop, first, messageId="m-1")
            clock.write_text("+450")  # Redis keeps entries for ten minutes after their end
            wait_until(lambda: logged(first, "the clock of the store's server is 7 min ahead of this daemon's"))
            clock.write_text("+400d")
            for each in (first, second):
                wait_until(partial(logged, each, "the store may have lost all entries that end within 399 d"))
            clock.write_text("+0")
            for each in (first, second):
                wait_until(partial(logged, each, "the clocks of the store and of this daemon agree again"))
                wait_until(partial(is_over, each))  # no key is missing
                assert each.metric("ingestd_store_losses_total") == 1


def test_partitions_that_rest_learn_of_a_short_jump(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    with redis_by_clock(tmp_path / "redis", clock, cluster_enabled="yes") as redis:
        redis.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
        wait_until(lambda: redis.client().cluster("INFO")["cluster_state"] == "ok")
        config = tmp_path / "ingestd.toml"
        config.write_text(CLUSTER.format(url=redis.url.replace("redis:", "redis+cluster:").removesuffix("/0")))
        with short_times(redis_heartbeat=0.3), Daemon(config) as daemon:  # of the first partition; others rest 3 s
            wait_until(lambda: daemon.metric("ingestd_redis_batches_total") > 3 * PARTITIONS)
            clock.write_text("+400d")
            wait_until(
                partial(logged, daemon, "partition 00 (0 tenants): the store may have lost all entries that end within")
            )
            clock.write_text("+0")
            wait_until(lambda: daemon.metric("ingestd_store_losses_total") == PARTITIONS)


def is_over(daemon: Daemon) -> bool:
    return daemon.metric("ingestd_store_lost") == 0
