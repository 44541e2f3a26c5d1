"""A Redis Cluster with TLS between all parties, and a user with the documented rights only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from redis.crc import key_slot

from ingestd.plugins.stores.redis.cluster.topology import partition_tags
from tests.acceptance.test_redis_cluster import post
from tests.support.clients import wait_until
from tests.support.cluster_shop import ClusterShop
from tests.support.daemon import run_ingestd
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.redis_server import make_certificate

PASSWORD = "a/word:with@all"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def cluster(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster"), replicas=False, tls=files) as cluster:
        rights = ["~shop:*", "+@all", "-@admin", "-@dangerous", "+info", "+config|get"]  # as in docs/redis.md
        for node in cluster.nodes:
            cluster.ask(node, "ACL SETUSER", "ingestd", "on", f">{PASSWORD}", *rights)
        yield cluster


@pytest.fixture
def shop(cluster: RedisCluster, files: tuple[Path, Path], tmp_path: Path) -> ClusterShop:
    shop = ClusterShop(tmp_path, cluster=cluster)
    connect(shop, f"rediss+cluster://ingestd:{quote(PASSWORD, safe='')}@{cluster.addresses}/?ssl_ca_certs={files[1]}")
    return shop


def connect(shop: ClusterShop, url: str) -> None:
    """Use this URL. A handshake may take more than the usual second, as on a busy machine."""
    text = shop.config.read_text().replace(shop.cluster.url, url)
    shop.config.write_text(text.replace("[plugins.redis]\n", '[plugins.redis]\ntimeout = "10s"\n'))


def test_all_tenants_are_served_with_tls_and_a_user_also_after_a_slot_has_moved(shop: ClusterShop) -> None:
    with shop.serve_with(1) as (daemon,):
        assert [post(daemon, tenant, "before") for tenant in shop.tenants] == [200] * 6
        slot = key_slot(partition_tags(6)[0].encode())
        source = shop.cluster.primary_of(slot)
        shop.cluster.move_slot(slot, next(node for node in shop.cluster.nodes if node is not source))
        wait_until(lambda: post(daemon, shop.tenants[0], "after") == 200)
        wait_until(lambda: len(shop.archived_by(0)) == 7)
        shown = run_ingestd("check", config=shop.config)
        assert "a trial write is in every partition" in shown.stdout
        assert len(shop.exported()) == 7
        assert all(f"127.0.0.1:{node.options['tls-port']}: Redis" in shown.stdout for node in shop.cluster.nodes)


def test_a_certificate_without_trust_and_a_wrong_password_stop_the_start(
    cluster: RedisCluster, files: tuple[Path, Path], tmp_path: Path
) -> None:
    shop = ClusterShop(tmp_path, cluster=cluster)
    connect(shop, f"rediss+cluster://{cluster.addresses}/")
    done = run_ingestd("serve", config=shop.config)
    assert (done.returncode, "certificate verify failed" in done.stderr) == (75, True), done.stderr
    shop = ClusterShop(tmp_path, cluster=cluster)
    connect(shop, f"rediss+cluster://ingestd:wrong@{cluster.addresses}/?ssl_ca_certs={files[1]}")
    done = run_ingestd("serve", config=shop.config)
    assert (done.returncode, "the Redis Cluster refuses access: " in done.stderr) == (78, True), done.stderr
