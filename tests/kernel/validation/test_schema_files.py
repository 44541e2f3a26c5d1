"""The schema files: a described schema for each event key of the contract, and nothing stricter than the contract."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ingestd.api.errors import BadRequest
from ingestd.support.schema_references import References, subschemas
from ingestd.validation.schema_files import DRAFT, SchemaFile, complete_schemas, read_schemas, schema_ids
from ingestd.validation.validator import Validator
from tests.support.event_keys import KEYS, KNOWN_FIELDS, wanted_type

SCHEMAS = files("ingestd.schemas")
VALUES: dict[str, list[Any]] = {
    "string": ["text", ""],
    "number": [0, -1.5, 10**30],
    "array": [[], [1]],
    "object": [{}],
    "rest": [None, True],
}
EVERY_FIELD = set(" ".join(KNOWN_FIELDS.values()).replace("products:", "products").split())


def schema_files() -> list[Traversable]:
    folders = [SCHEMAS, SCHEMAS / "definitions"]
    return [entry for folder in folders for entry in folder.iterdir() if entry.name.endswith(".json")]


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(inner)


def test_each_event_key_has_a_file_and_each_file_a_key() -> None:
    titles = {entry.name: json.loads(entry.read_text(encoding="utf-8"))["title"] for entry in schema_files()}
    events = {entry.name: titles[entry.name] for entry in SCHEMAS.iterdir() if entry.name.endswith(".json")}
    assert events == {f"{key.lower().replace(' ', '_')}.json": key for key in KEYS}
    assert len(KEYS) == 33


def test_the_validator_knows_the_keys_and_their_files() -> None:
    validator = Validator.load()
    assert validator.keys == set(KEYS)
    assert {schema.key for schema in validator.schemas} == set(KEYS)
    for schema in validator.schemas:
        assert schema.builtin
        assert schema.description.startswith("Sent when ")
        assert (SCHEMAS / schema.file).is_file()


def test_the_files_are_schemas_of_the_draft_and_refer_to_one_another() -> None:
    """Checked by `jsonschema`, which is independent of ingestd."""
    schemas = {each["$id"]: each for each in (json.loads(file.read_text(encoding="utf-8")) for file in schema_files())}
    references = References(schemas)
    for uri, schema in schemas.items():
        Draft202012Validator.check_schema(schema)
        assert [path for inner, path in subschemas(schema) if path and {"$id", "$schema"} & inner.keys()] == []
        assert [*references.faults(uri)] == []


@pytest.mark.parametrize("entry", schema_files(), ids=lambda entry: entry.name)
def test_a_file_describes_itself_and_every_field(entry: Traversable) -> None:
    schema = json.loads(entry.read_text(encoding="utf-8"))
    assert schema["title"]
    assert schema["description"]
    for node in nodes(schema):
        for name, field in node.get("properties", {}).items():
            assert field.get("description"), name


@pytest.mark.parametrize("entry", schema_files(), ids=lambda entry: entry.name)
def test_nothing_is_stricter_than_promised(entry: Traversable) -> None:
    """Schemas of keys have types only. The envelopes bound three identifiers, and require three fields."""
    schema = json.loads(entry.read_text(encoding="utf-8"))
    if entry.name == "envelope.json":
        assert schema.pop("required") == ["anonymousId"]
        for name, keywords in {
            "anonymousId": {"minLength": 1, "maxLength": 512},
            "messageId": {"minLength": 1, "maxLength": 128},
        }.items():
            field = schema["properties"][name]
            assert {keyword: field.pop(keyword) for keyword in keywords} == keywords
        del schema["properties"]["sessionId"]
    if entry.name == "event.json":
        assert sorted(schema.pop("required")) == ["data", "key"]
    allowed = {"$schema", "$id", "$ref", "title", "description", "examples", "type", "properties", "items"}

    def check(node: dict[str, Any]) -> None:
        # Generators of code take an object without known fields and without this keyword for an empty one.
        if node.get("type") == "object" and not {"properties", "$ref"} & node.keys():
            assert node.pop("additionalProperties") is True
        assert node.keys() <= allowed
        for inner in [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]:
            check(inner)

    check(schema)


@pytest.mark.parametrize("key", KEYS)
def test_an_event_has_a_valid_example_of_known_fields(validator: Validator, key: str) -> None:
    entry = SCHEMAS / f"{key.lower().replace(' ', '_')}.json"
    (example,) = json.loads(entry.read_text(encoding="utf-8"))["examples"]
    assert faults(validator, key, example) == set()
    known = KNOWN_FIELDS.get(key, "").replace("products:", "products").split()
    assert not known or example.keys() <= {*known, "filters", "sorts"}


def fields() -> Iterator[tuple[str, str, str]]:
    for key in KEYS:
        own, _, inner = KNOWN_FIELDS.get(key, "").partition("products:")
        yield from ((key, "/data", field) for field in own.split())
        yield from ((key, "/data/products/0", field) for field in inner.split())


def faults(validator: Validator, key: str, data: Any) -> set[str]:
    try:
        validator.event({"key": key, "anonymousId": "a", "data": data})
    except BadRequest as error:
        return {violation.pointer for violation in error.errors}
    return set()


@pytest.fixture(scope="module")
def validator() -> Validator:
    return Validator.load()


@pytest.mark.parametrize("key", sorted({key for key, _, _ in fields()}))
def test_a_known_field_takes_its_type_and_no_other(validator: Validator, key: str) -> None:
    for parent, field in [(parent, field) for known, parent, field in fields() if known == key]:
        wanted = wanted_type(key, field)
        for kind, values in VALUES.items():
            for value in values:
                data = {field: value} if parent == "/data" else {"products": [{field: value}]}
                assert faults(validator, key, data) == (set() if kind == wanted else {f"{parent}/{field}"}), field


@pytest.mark.parametrize("key", KEYS)
def test_further_fields_pass_with_any_value(validator: Validator, key: str) -> None:
    known = set(KNOWN_FIELDS.get(key, "").replace("products:", "products").split())
    if key == "Product List Filtered":
        known |= {"filters", "sorts"}
    names = {*EVERY_FIELD, "filters", "sorts", "Order Id", ""} - known
    for values in VALUES.values():
        for value in values:
            assert faults(validator, key, dict.fromkeys(names, value)) == set()


@pytest.mark.parametrize("name", ["filters", "sorts"])
def test_filters_and_sorts_have_a_type_and_any_value(validator: Validator, name: str) -> None:
    key = "Product List Filtered"
    for values in VALUES.values():
        for value in values:
            assert faults(validator, key, {name: [{"type": "price", "value": value}]}) == set()
            if not isinstance(value, str):
                assert faults(validator, key, {name: [{"type": value}]}) == {f"/data/{name}/0/type"}
            if not isinstance(value, dict):
                assert faults(validator, key, {name: [{}, value]}) == {f"/data/{name}/1"}


@pytest.mark.parametrize("key", [key for key in KEYS if "products" in KNOWN_FIELDS.get(key, "")])
def test_products_is_an_array_of_objects(validator: Validator, key: str) -> None:
    assert faults(validator, key, {"products": []}) == set()
    assert faults(validator, key, {"products": {}}) == {"/data/products"}
    assert faults(validator, key, {"products": None}) == {"/data/products"}
    assert faults(validator, key, {"products": [{}, "p-1", None]}) == {"/data/products/1", "/data/products/2"}


def test_the_hash_of_a_schema_changes_with_all_that_it_refers_to_and_with_nothing_else() -> None:
    def files_of(box: str = "string", other: str = "string") -> list[SchemaFile]:
        schemas: list[dict[str, Any]] = [
            {"$id": "urn:s:box", "$defs": {"in": {"$ref": "urn:s:deep#/$defs/x"}}},
            {"$id": "urn:s:deep", "$defs": {"x": {"type": box, "not": {"$ref": "urn:s:box"}}}},
            {"$id": "urn:s:gift", "title": "Gift", "properties": {"box": {"$ref": "urn:s:box#/$defs/in"}}},
            {"$id": "urn:s:other", "title": "Other", "type": other},
        ]
        return [SchemaFile("f", each, each.get("title"), builtin=False) for each in schemas]

    before = schema_ids(files_of())
    assert before.keys() == {"Gift", "Other"}
    assert all(re.fullmatch("[0-9a-f]{12}", each) for each in before.values())
    assert schema_ids(files_of()[::-1]) == before
    assert schema_ids(files_of(box="number")) == before | {"Gift": schema_ids(files_of(box="number"))["Gift"]} != before
    assert schema_ids(files_of(other="number"))["Gift"] == before["Gift"]


def test_a_complete_schema_has_all_files_that_it_refers_to(tmp_path: Path) -> None:
    def write(name: str, **members: Any) -> dict[str, Any]:
        schema = {"$schema": DRAFT, "$id": f"https://shop.example/{name}", "type": "object", **members}
        path = tmp_path / (f"{name}.json" if "title" in members else f"definitions/{name}.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(schema), encoding="utf-8")
        return schema

    deep = write("deep", properties={"name": {"type": "string"}})
    box = write("box", properties={"inner": {"$ref": "deep"}})
    note = write("note", title="Note", properties={"text": {"type": "string"}})
    gift = write("gift", title="Gift", properties={"box": {"$ref": "box"}, "note": {"$ref": note["$id"]}})
    complete = complete_schemas(tmp_path)
    assert complete["Gift"] == {**gift, "$defs": {each["$id"]: each for each in (box, note, deep)}}
    assert complete["Note"] == note
    files = read_schemas(tmp_path)
    before = schema_ids(files)
    deep["properties"] = {"name": {"type": "number"}}
    write("deep", **deep)
    assert {key for key, id_ in schema_ids(read_schemas(tmp_path)).items() if id_ != before[key]} == {"Gift"}
