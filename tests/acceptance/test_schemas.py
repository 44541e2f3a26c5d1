"""A changed schema: what `check`, `reload` and `schemas check` say of stored events, and the catalogue of members."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingestd.validation.validator import Validator
from tests.support.daemon import Daemon, Shop, run_ingestd

KEY = "Gift Wrapped"


def write_schema(folder: Path, **members: Any) -> None:
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:shop:gift", "title": KEY,
        "description": "d", "type": "object",
    }  # fmt: skip
    (folder / "schemas" / "gift.json").write_text(json.dumps({**head, **members}))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shop, Daemon]]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "schemas").mkdir()
    write_schema(folder, properties={"cost": {"type": "number"}})
    shop = Shop(folder, {"schemas": 'directory = "schemas"'})
    with shop.serve() as daemon:
        for number in range(6):
            data: Any = {"cost": number, "to": "Ann 7", "items": [{"sku": "ab-1"}, {"sku": 5}]} if number else {}
            body = {"key": KEY, "anonymousId": "v", "data": data}
            assert daemon.post("/track", body, shop.public.id).status == 200
        assert daemon.post("/track", {"key": "Page View", "anonymousId": "v", "data": {}}, shop.public.id).status == 200
        yield shop, daemon


def warnings(shop: Shop) -> list[str]:
    done = run_ingestd("check", "--json", config=shop.config)
    return [each for each in json.loads(done.stdout)["warnings"] if each.startswith("schemas")]


def test_records_name_the_schema_that_they_met(shop: tuple[Shop, Daemon]) -> None:
    ids = Validator.load(shop[0].config.parent / "schemas").schema_ids
    for record in shop[0].exported("--type", "event"):
        assert [*record][-1] == "schema"
        assert record["schema"] == ids[record["key"]]


def test_a_breaking_change_is_told_before_and_when_it_takes_force(shop: tuple[Shop, Daemon]) -> None:
    place, daemon = shop
    folder = place.config.parent
    assert warnings(place) == []
    fine = run_ingestd("schemas", "check", "--against", "7d", config=place.config)
    assert (fine.returncode, fine.stdout) == (0, "the schemas take all 7 events\n")
    items = {"type": "array", "items": {"properties": {"sku": {"type": "string"}}}}
    write_schema(folder, properties={"cost": {"type": "string"}, "items": items}, required=["cost"])
    (told,) = warnings(place)
    for part in (KEY, "6 of the last 6", "/data/cost: expected string, got number (5)", "required, but missing (1)"):
        assert part in told
    failed = run_ingestd("schemas", "check", "--against", "7d", "--json", config=place.config)
    assert failed.returncode == 1
    assert failed.stderr.endswith("the schemas refuse 6 of 7 events\n")
    report = json.loads(failed.stdout)
    assert (report["events"], report["refused"]) == (7, 6)
    assert {(each["pointer"], each["message"]): each["events"] for each in report["keys"][0]["faults"]} == {
        ("/data/cost", "expected string, got number"): 5,
        ("/data/items/*/sku", "expected string, got number"): 5,
        ("/data/cost", "required, but missing"): 1,
    }
    lines = run_ingestd("schemas", "check", "--against", "7d", config=place.config).stdout
    assert "/data/items/*/sku" in lines
    done = run_ingestd("reload", config=place.config)
    assert done.returncode == 0
    assert f"WARNING: the new schema of {KEY} would refuse 6 of the last 6 events: " in done.stdout
    body = {"key": KEY, "anonymousId": "v", "data": {"cost": "1"}}
    assert daemon.post("/track", body, place.public.id).status == 200
    assert warnings(place) == [], "callers send events of the new schema already"
    (folder / "schemas" / "gift.json").unlink()
    (told,) = warnings(place)
    assert "/key: there is no such event key (7)" in told


def test_the_catalogue_has_each_member_with_masked_examples(shop: tuple[Shop, Daemon]) -> None:
    place, _ = shop
    done = run_ingestd("schemas", "catalogue", "--key", KEY, "--json", config=place.config)
    found = json.loads(done.stdout)
    assert found["key"] == KEY
    members = {each["pointer"]: each for each in found["members"]}
    assert [*members] == ["/data/cost", "/data/items", "/data/items/*", "/data/items/*/sku", "/data/to"]
    assert sorted(members["/data/items/*/sku"]["types"]) == ["number", "string"]
    assert (members["/data/to"]["example"], members["/data/to"]["events"]) == ("aaa 9", 5)
    assert members["/data/to"]["share"] == round(5 / found["events"], 4)
    page = run_ingestd("schemas", "catalogue", config=place.config).stdout
    assert "/data/items/*/sku" in page
    assert "Ann" not in page + done.stdout
    unknown = run_ingestd("schemas", "catalogue", "--key", "Page Veiw", config=place.config)
    assert unknown.returncode == 1
    assert "did you mean Page View?" in unknown.stderr
