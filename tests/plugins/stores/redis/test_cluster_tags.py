"""The partitions of a Redis Cluster lie evenly on its slots, and the tenants are spread over the nodes by them."""

from __future__ import annotations

import random
from collections import Counter
from hashlib import sha256

import pytest
from redis.crc import key_slot

from ingestd.plugins.stores.redis.cluster.topology import SLOTS, partition_tags
from ingestd.storage.placements import index_of_tenant
from tests.support.zipf import Nodes, zipf_sizes

PARTITIONS = 64


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("partitions", [1, 2, 16, 20, 64, 100, 1024])
def test_partitions_spread_evenly_over_nodes_with_equal_parts_of_the_slots(partitions: int, nodes: int) -> None:
    slots = [key_slot(f"shop:{{{tag}}}:journal".encode()) for tag in partition_tags(partitions)]
    assert slots == sorted({*slots})
    counts = Counter(slot * nodes // SLOTS for slot in slots)
    spread = [counts[node] for node in range(nodes)]
    assert max(spread) - min(spread) <= 1


def test_the_tags_never_change() -> None:
    assert partition_tags(6) == ["2977", "2197", "450", "3616", "7593", "726"]
    digest = sha256(" ".join(partition_tags(64)).encode()).hexdigest()
    assert digest == "6ba457519e47add1995c4160eb9752fc9ab565c04ef9d7bede1f8866051b42f3"


def test_a_day_of_200_tenants_spreads_within_a_factor_of_two_over_three_nodes_after_two_moves_at_most() -> None:
    chance, moves = random.Random(1), Counter[int]()
    first = [key_slot(tag.encode()) * 3 // SLOTS for tag in partition_tags(PARTITIONS)]
    for _ in range(500):
        sizes = [0] * PARTITIONS
        for size in zipf_sizes(200, 1_000_000):
            sizes[index_of_tenant(f"shop {chance.getrandbits(64)}", PARTITIONS)] += size
        nodes = Nodes(sizes, first, 3)
        while nodes.factor > 2:
            nodes.move_one()
        moves[nodes.moves] += 1
    assert max(moves) <= 2
    assert moves[0] > 225, "chance alone is right for half of them"
