"""URLs of clusters, the claims of nodes, and how daemons share consumers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import ConfigError
from ingestd.api.options import Address, Duration
from ingestd.plugins.stores.redis import RedisPlugin
from ingestd.plugins.stores.redis.cluster.connections import make_topology, parse_cluster_url
from ingestd.plugins.stores.redis.cluster.topology import Claim, read_answer
from ingestd.plugins.stores.redis.work_sharing import DaemonReport, WorkSharing


def test_a_url_names_nodes_and_the_options_of_all() -> None:
    url = parse_cluster_url("rediss+cluster://user:p%2Fw@one:6379,[::1]:6380/?ssl_ca_certs=/ca.pem")
    assert url.nodes == (Address("one", 6379), Address("::1", 6380))
    assert url.is_secure
    assert url.options == {"username": "user", "password": "p/w", "ssl_ca_certs": "/ca.pem"}
    assert parse_cluster_url("redis+cluster://one:1").nodes == (Address("one", 1),)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+cluster:one:1", "expected redis\\+cluster://host:port"),
        ("redis+cluster://", "each node has a host and a port"),
        ("redis+cluster://one,two:2/", "each node has a host and a port"),
        ("redis+cluster://one:1,/", "each node has a host and a port"),
        ("redis+cluster://one:99999/", "each node has a host and a port"),
        ("redis+cluster://one:1/3", "a cluster has no database numbers"),
        ("redis+cluster://:p#w@one:1/", "expected redis\\+cluster://host:port"),
    ],
)
def test_a_url_that_is_none_of_a_cluster_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"this URL is not one of a Redis Cluster: .*{reason}"):
        parse_cluster_url(url)


def test_an_unknown_option_of_a_url_is_named() -> None:
    with pytest.raises(ConfigError, match="an option redis-py does not know: colour"):
        make_topology(parse_cluster_url("redis+cluster://one:1/?colour=red"), timeout=1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (RedisPlugin.Options(sentinels=("one:1",)), "plugins.redis.sentinels: a Redis Cluster needs no Sentinels"),
        (RedisPlugin.Options(prefix="{shop}:"), "plugins.redis.prefix: '{shop}:' has a brace"),
    ],
)
def test_options_that_a_cluster_cannot_have(options: RedisPlugin.Options, reason: str, tmp_path: Path) -> None:
    made: dict[str, Any] = {}
    RedisPlugin(options).register_stores(made.__setitem__)
    with pytest.raises(ConfigError, match=reason):
        made["redis+cluster"]("redis+cluster://one:1/", tmp_path)


def test_a_patience_beyond_the_memory_of_redis_is_refused() -> None:
    RedisPlugin(RedisPlugin.Options(patience=Duration.parse("5m")))
    with pytest.raises(ConfigError, match=r"plugins\.redis\.patience: expected at most 5m: .* twice"):
        RedisPlugin(RedisPlugin.Options(patience=Duration.parse("301s")))


def test_the_claims_of_a_node_have_its_addresses_and_epochs() -> None:
    nodes = (
        "aaa :7001@17001 myself,master - 0 0 5 connected 0-99 200 [300->-bbb]\n"
        "bbb 10.0.0.2:7002@17002,two.example master - 0 1 7 connected 100-199\n"
        "ccc 10.0.0.3:7003@17003 slave,fail bbb 0 1 7 disconnected\n"
    )
    slots = [
        [0, 99, [b"", 7001, b"aaa", []]],
        [200, 200, [None, 7001, b"aaa", []]],
        [100, 199, [b"two.example", 7002, b"bbb", []], [b"10.0.0.3", 7003, b"ccc", []]],
    ]
    one, two = Address("one.example", 7001), Address("two.example", 7002)
    claims, replicas = read_answer(one, nodes, slots)
    assert claims == [
        Claim(0, 99, 5, one, ()), Claim(200, 200, 5, one, ()), Claim(100, 199, 7, two, (Address("10.0.0.3", 7003),)),
    ]  # fmt: skip
    assert replicas == 1


def shared(partitions: int, reports: Sequence[DaemonReport]) -> list[tuple[str, int, str]]:
    """Which daemon has which consumer of which partition, by the view of each daemon."""
    found = []
    for report in reports:
        for number in range(partitions):
            sharing = WorkSharing(number, asyncio.Event(), 64)
            sharing.name = report.name
            sharing.learn([*map(str, reports)])
            found += [(report.name, number, each) for each in report.consumers if sharing.has(each)]
            assert all(sharing.passes(each) is not sharing.has(each) for each in report.consumers)
    return found


def test_daemons_share_the_consumers_of_all_partitions_evenly() -> None:
    reports = [DaemonReport(name, 1, "host", ("attribution", "crm", "sink x,y")) for name in ("c", "a", "b")]
    found = shared(64, reports)
    assert len({(number, consumer) for _, number, consumer in found}) == len(found) == 3 * 64
    for consumer in reports[0].consumers:
        counts = Counter(name for name, _, each in found if each == consumer)
        assert {*counts.values()} <= {21, 22}


def test_a_consumer_belongs_to_a_daemon_that_has_it() -> None:
    found = shared(10, [DaemonReport("a", 1, "host", ("crm",)), DaemonReport("b", 1, "host", ("crm", "new"))])
    assert sorted(number for name, number, consumer in found if consumer == "new") == [*range(10)]


def test_a_change_of_the_wanted_consumers_is_due_for_a_report_at_once() -> None:
    changed = asyncio.Event()
    sharing = WorkSharing(0, changed, 64)
    for change in (sharing.want, sharing.forgo):
        change("crm")
        assert sharing.is_due
        assert changed.is_set()
        sharing.is_due = False
        changed.clear()
        change("crm")
        assert not sharing.is_due
        assert not changed.is_set()
    assert sharing.wanted == []
