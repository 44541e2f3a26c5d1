"""The models of `ingestd models`: names, kinds of columns by their schema, and the page of the site that lists them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import CommandError
from ingestd.plugins.models import orders, visits
from ingestd.plugins.models.catalogue import MODELS, all_models
from ingestd.plugins.models.dbt import write_package
from ingestd.plugins.models.dialects import DIALECTS, Postgres
from ingestd.plugins.models.model import Column
from ingestd.support.column_names import distinct, snake_case
from ingestd.support.schema_members import Member, Schemas
from ingestd.validation.schema_files import DRAFT, SchemaFile, read_schemas
from scripts import docs_site


def schema(key: str, properties: dict[str, Any], **more: Any) -> SchemaFile:
    body = {
        "$schema": DRAFT,
        "$id": f"urn:shop:{key}",
        "title": key,
        "type": "object",
        "properties": properties,
        **more,
    }
    return SchemaFile(f"{key}.json", body, key, builtin=False)


def test_postgres_finds_a_member_whose_name_has_a_nul_as_the_sink_writes_it() -> None:
    assert Postgres("t").member("data", "a\0b") == "(data -> 'a\ufffdb')"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Product Added to Wishlist", "product_added_to_wishlist"),
        ("orderID", "order_id"),
        ("HTTPStatus", "http_status"),
        ("Café: visited", "cafe_visited"),
        ("3D View", "n3_d_view"),
        ("a'; DROP TABLE x; --", "a_drop_table_x"),
        ("订单", "n3d5436"),
    ],
)
def test_names_are_in_snake_case(text: str, name: str) -> None:
    assert snake_case(text) == name


def test_no_two_things_have_one_name() -> None:
    texts = [
        "Gift Wrapped",
        "gift wrapped",
        "giftWrapped",
        "Gift-Wrapped",
        "orders",
        "x" * 90,
        "x" * 91,
        "订单",
        "退款",
    ]
    texts += ["x" * 90, "orders", "x" * 90, distinct({0: "a", 1: "a"})[1], "a", "a"]
    names = distinct(dict(enumerate(texts)), ["orders"])
    assert len({*names.values(), "orders"}) == len(texts) + 1
    assert names[0] == "gift_wrapped"
    assert all(len(name.encode()) <= 63 for name in names.values())


def test_a_shops_key_never_takes_the_name_of_another_view() -> None:
    keys = ["Orders", "order completed", "Order Completed Products", "sessions", "ingestd models", "Zeta", "zeta"]
    mine = [
        schema(key, {"tags": {"type": "array", "items": {"type": "object", "properties": {"a": {}}}}}) for key in keys
    ]
    for dialect in DIALECTS.values():
        built_in = [each.name for each in all_models(read_schemas(None), dialect("x"))]
        names = [each.name for each in all_models([*mine, *read_schemas(None)], dialect("x"))]
        assert len({*names}) == len(names) == len(built_in) + 2 * len(keys)
        assert {*built_in} < {*names}


def test_members_and_keys_that_are_joined_to_one_text_have_two_names() -> None:
    lines = {"type": "array", "items": {"type": "object", "properties": {"a": {}}}}
    inner = {"type": "object", "properties": {"b": {}, "data": {}}}
    mine = [
        schema("A b", {"c": lines}),
        schema("A", {"b c": lines, "a": inner, "a/b": {}, "data": {}, "data/data": {}}),
        schema("Order Completed products", {}),
    ]
    for dialect in DIALECTS.values():
        models = all_models([*mine, *read_schemas(None)], dialect("x"))
        assert len({each.name for each in models}) == len(models)
        for model in models:
            assert len({each.name for each in model.columns}) == len(model.columns), model.name


def test_kinds_follow_the_schema() -> None:
    shared = SchemaFile(
        "base.json", {"$id": "urn:shop:base", "properties": {"a": {"type": "string"}, "deep": {"$ref": "#/$defs/self"}},
                      "$defs": {"self": {"properties": {"self": {"$ref": "#/$defs/self"}}, "type": "object"}}}, None,
        builtin=False,
    )  # fmt: skip
    line = {"type": "object", "properties": {"b": {"type": "boolean"}}}
    whole = schema(
        "x",
        {
            "n": {"type": "integer"}, "null": {"type": ["number", "null"]}, "either": {"type": ["number", "string"]},
            "when": {"type": "string", "format": "date-time"}, "any": {}, "always": True, "list": {"type": "array"},
            "const": {"const": "x"}, "lines": {"type": "array", "items": line},
            "numbers": {"type": "array", "items": {"type": "number"}},
        },
        **{"$ref": "urn:shop:base", "oneOf": [{"properties": {"one": {"type": "string"}}}, True]},
    )  # fmt: skip
    found: dict[str, Member] = {
        "/".join(each.path): each
        for each in Schemas({each.uri: each.schema for each in (shared, whole)}).members(whole.uri)
    }
    assert {name: each.kind for name, each in found.items()} == {
        "a": "text", "deep/self/self": "json", "one": "text", "n": "decimal", "null": "decimal", "either": "json",
        "when": "time", "any": "json", "list": "json", "const": "text", "lines": "json", "numbers": "json",
    }  # fmt: skip
    assert [each.kind for each in found["lines"].items] == ["boolean"]
    assert not found["numbers"].items


def test_members_are_found_by_any_reference() -> None:
    by_uri: dict[str, dict[str, Any]] = {
        "https://shop.example/gift": {"properties": {"box": {"$ref": "box"}, "card": {"$ref": "box#card"}}},
        "https://shop.example/box": {
            "type": "object",
            "properties": {"size": {"type": "number"}},
            "$defs": {"a": {"$anchor": "card", "oneOf": [{"$ref": "#/$defs/b~1c/anyOf/0"}]}, "b/c": {"anyOf": [_TEXT]}},
        },
    }
    found = Schemas(by_uri).members("https://shop.example/gift")
    assert [(each.path, each.kind) for each in found] == [(("box", "size"), "decimal"), (("card",), "text")]


_TEXT = {"type": "string"}


def _table(columns: Sequence[Column]) -> str:
    return "\n".join(f"| `{each.name}` | {each.kind} | {each.description} |" for each in columns)


def test_the_page_lists_each_view_with_its_columns() -> None:
    models = {each.name: each for each in all_models(read_schemas(None), Postgres("x"))}
    _, *parts = docs_site.views().split("\n## ")
    sections = {name: part for name, _, part in (each.partition("\n") for each in parts)}
    common = models["page_view"].columns
    assert _table(common) in sections.pop("Every event key")
    assert _table(models["order_completed_products"].columns[:9]) in sections.pop("Every array of objects")
    assert "SELECT" in sections.pop("Ten questions")
    assert {*sections} == {*models}
    for name in (*orders.NAMES, *visits.NAMES, MODELS):
        rows = [line for line in sections[name].splitlines() if line.startswith("| `")]
        assert "\n".join(rows) == _table(models[name].columns), name
        assert models[name].description in sections[name]
    assert _table(models["order_completed"].columns[len(common) :]) in sections["order_completed"]
    assert _table(models["order_completed_products"].columns[9:]) in sections["order_completed_products"]


def test_each_view_reads_only_views_before_it() -> None:
    for dialect in DIALECTS.values():
        before: set[str] = set()
        for model in all_models(read_schemas(None), dialect("x")):
            assert {*model.needs} <= before
            before.add(model.name)


def test_the_dbt_package_has_the_same_queries(tmp_path: Path) -> None:
    shops = schema(
        "Braces {{ x }} {% y %}", {"{{ member }}": {"type": "string"}, "{% endraw %}": {"type": "string"}, "\0": {}}
    )
    shops.schema["properties"]["\ud800"] = {"description": "no event has it"}
    shops.schema["description"] = "\ud800"
    files = [*read_schemas(None), shops]
    folder = tmp_path / "dbt"
    count = write_package(folder, files)
    views = [each.name for each in all_models(files, Postgres("x"))]
    names = {"source('ingestd', 'records')": "x", **{f"ref('{name}')": name for name in views}}
    for engine, kind in DIALECTS.items():
        models = all_models(files, kind("x"))[:-1]
        assert count == len(models)
        for model in models:
            text = (folder / "models" / f"{model.name}.sql").read_text()
            (branch,) = re.findall(rf"target.type == '{engine}' %}}\n(.*?)\n{{% e(?:lif .*?|ndif) %}}", text, re.DOTALL)
            shown = re.sub(r"\{\{ ((?:ref|source)\(.*?\)) \}\}", lambda found: names[found[1]], branch)
            shown = shown.replace("{{ '{' }}", "{")
            wanted = model.query(kind("x"))
            for name in names.values():
                wanted = wanted.replace(kind("x").view(name), name)
            if engine == "duckdb":
                wanted = re.sub(r"read_parquet\(.*?union_by_name = true\)", "x", wanted)
            assert shown == wanted
    described = json.loads((folder / "models" / "models.yml").read_text())["models"]
    assert [each["name"] for each in described] == [each.name for each in all_models(files, Postgres("x"))[:-1]]
    seed = folder / "seeds" / "attribution_report.csv"
    seed.write_text("kept")
    assert write_package(folder, read_schemas(None)) == count - 1
    assert seed.read_text() == "kept"
    assert len([*(folder / "models").glob("*.sql")]) == count - 1
    with pytest.raises(CommandError, match="has other files"):
        write_package(tmp_path, files)
