"""Which partition a tenant belongs to, and which keys its entries have, after a move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingestd.api.contents import kind_of, namespace_of
from ingestd.api.errors import Unavailable
from ingestd.api.privacy import Person
from ingestd.api.store import key_digest, passing_key, state_key, use_namespaces
from ingestd.pipeline.resolver import message_key
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.storage.placements import (
    Move,
    Place,
    Placed,
    PlacementMap,
    Placements,
    index_of_tenant,
    put_map,
    read_map,
    unfinished,
)


@pytest.fixture(autouse=True)
def _no_namespaces() -> Iterator[None]:
    yield
    use_namespaces({})


def test_the_keys_of_a_moved_tenant_have_a_number() -> None:
    makers: list[Callable[[str], str]] = [
        lambda tenant: state_key("session", tenant, "visitor"),
        lambda tenant: state_key("session", tenant, "é" * 100),
        lambda tenant: passing_key("session", tenant, "visitor"),
        lambda tenant: message_key(tenant, "message"),
        lambda tenant: Person(tenant, None, [key_digest(tenant, "visitor")]).visitor_keys("session")[0],
        lambda tenant: str(Person(tenant, "user").user_key("session")),
    ]
    for make in makers:
        use_namespaces({})
        before, other = make("shop"), make("other")
        use_namespaces({"shop": 7})
        assert make("shop") == before.replace(":", "@7:")
        assert make("other") == other
        assert (kind_of(make("shop")), namespace_of(make("shop"))) == (kind_of(before), 7)
        assert namespace_of(before) == 0


async def test_a_copy_with_another_number_of_partitions_keeps_the_keys(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "ingestd.db", cache=1000, busy_timeout=1.0)
    await backend.open(serving=True)
    state, moved = backend.store.begin(0), Placed(Place(5, 7), [Place(2)])
    await put_map(state, PlacementMap(8, 3, {"shop": moved}))
    assert (await read_map(state, 8)).tenants == {"shop": moved}
    copied = await read_map(state, 3)
    place = copied.tenants["shop"].place
    assert (copied.version, place) == (3, Place(index_of_tenant("shop", 3), 7))
    await backend.close()


def test_where_a_tenant_is_while_it_moves() -> None:
    placements, source, target = Placements(8), Place(index_of_tenant("shop", 8)), Place(5, 7)
    move = Move(source, target)
    steps = [
        (Placed(source, move=move), source, False),
        (Placed(source, move=Move(source, target, halted=True)), source, True),
        (Placed(target, [source], Move(source, target, owned=True, halted=True)), target, True),
        (Placed(target, [source]), target, False),
    ]
    for version, (placed, place, is_halted) in enumerate(steps):
        placements.use(PlacementMap(8, version, {"shop": placed}), [])
        assert placements.index_of("shop") == place.partition
        assert placements.is_halted is is_halted
        for index in range(8):
            if index == place.partition and not is_halted:
                placements.check(index, "shop")
            else:
                with pytest.raises(Unavailable):
                    placements.check(index, "shop")
        problem = unfinished(placements.map, [f"{index:02}" for index in range(8)])
        assert (problem is None) is (placed.move is None)
        assert problem is None or problem.endswith("`ingestd partitions place shop --partition 05`")
    assert placements.indices_of("shop") == [5, source.partition]
    assert placements.indices_of("other") == [index_of_tenant("other", 8)]
