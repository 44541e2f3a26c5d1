"""The OpenAPI document: valid, the same as routes, errors and docs, and in agreement with the validator."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator
from referencing.jsonschema import DRAFT202012
from schemathesis.specs.openapi.definitions import OPENAPI_31

from ingestd.api.errors import Refused, SchemaViolation
from ingestd.api.options import Address
from ingestd.http.app import BASE_PATH
from ingestd.http.routes import OWN_OPERATIONS
from ingestd.pipeline.outcomes import problem
from ingestd.plugins.openapi.document import listener_url, make_document, to_json
from ingestd.plugins.openapi.schema_components import SchemaComponents
from ingestd.validation.batch_parser import MAX_EVENTS
from ingestd.validation.schema_files import DRAFT, SchemaFile, read_schemas
from ingestd.validation.validator import Validator
from scripts import openapi
from tests.support.event_keys import KEYS
from tests.support.mutations import mutate_value, valid_bodies

ROOT = Path(__file__).parents[2]
SERVER = "https://events.shop.example"
BUILT_IN = read_schemas(None)
DOCUMENT = make_document(BUILT_IN, SERVER)
COMPONENTS = DOCUMENT["components"]
OPERATIONS = {path.removeprefix(BASE_PATH): methods["post"] for path, methods in DOCUMENT["paths"].items()}
PROBLEMS = [each["value"] for each in COMPONENTS["examples"].values() if "code" in each["value"]]
CODES = [each["code"] for each in PROBLEMS]


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(inner)


def schema_of(name: str, document: Mapping[str, Any] = DOCUMENT) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    )


def shop_file(uri: str, key: str | None, **keywords: Any) -> SchemaFile:
    title = {} if key is None else {"title": key, "type": "object"}
    return SchemaFile("own.json", {"$schema": DRAFT, "$id": uri, **title, **keywords}, key, builtin=False)


# The document as a whole


def test_it_is_a_valid_document_and_so_are_its_schemas() -> None:
    assert [error.message for error in Draft202012Validator(OPENAPI_31).iter_errors(DOCUMENT)] == []
    for schema in COMPONENTS["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_each_reference_has_a_target() -> None:
    references = [node["$ref"] for node in nodes(DOCUMENT) if isinstance(node.get("$ref"), str)]
    assert len(references) > 200
    for reference in references:
        start, *path = reference.split("/")
        assert start == "#"
        target: Any = DOCUMENT
        for step in path:
            target = target[step]
        assert isinstance(target, dict)


def test_the_file_in_docs_is_fresh() -> None:
    assert openapi.FILE.read_text(encoding="utf-8") == openapi.text(), "run `make openapi`"


def test_equal_files_give_equal_bytes() -> None:
    assert to_json(make_document(read_schemas(None), SERVER)) == to_json(DOCUMENT)
    assert json.loads(to_json(DOCUMENT)) == DOCUMENT


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("events.internal:80", "http://events.internal:80"),
        ("0.0.0.0:8080", "http://localhost:8080"),
        ("[::]:8080", "http://localhost:8080"),
    ],
)
def test_the_server_is_the_address_that_the_daemon_listens_on(listen: str, url: str) -> None:
    assert listener_url(Address.parse(listen)) == url


# Operations and problems


def test_it_has_the_paths_of_the_daemon_and_no_other() -> None:
    assert DOCUMENT["paths"].keys() == {f"{BASE_PATH}{path}" for path in OWN_OPERATIONS}
    for path, operation in OPERATIONS.items():
        own = OWN_OPERATIONS[path]
        (body,) = operation["requestBody"]["content"].values()
        signed = "" if own.endpoint.is_public else "Signed"
        identify = f"{signed}Identify" if own.endpoint.identifies else "AnyEvent"
        assert body["schema"]["$ref"].rpartition("/")[2] == (f"{signed}Batch" if own.batch else identify)
        assert operation["tags"] == ["Server" if signed else "Public"]


def test_an_operation_asks_for_the_credentials_of_its_caller() -> None:
    for path, operation in OPERATIONS.items():
        (wanted,) = operation["security"]
        assert {*wanted} == ({"publicKey"} if OWN_OPERATIONS[path].endpoint.is_public else {"serverKey", "signature"})
    assert {*COMPONENTS["securitySchemes"]} == {"publicKey", "serverKey", "signature"}


def test_it_has_the_codes_of_the_docs_with_their_statuses() -> None:
    table = re.findall(r"^\| (\d{3}) \| (`.+?`) \| (.+) \|$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    described = {(int(status), code) for status, codes, _ in table for code in re.findall(r"`(\w+)`", codes)}
    assert len(described) > 20
    assert {(each["status"], each["code"]) for each in PROBLEMS} == described
    assert COMPONENTS["schemas"]["Problem"]["properties"]["code"]["x-extensible-enum"] == CODES
    assert [each["status"] for each in PROBLEMS] == sorted(each["status"] for each in PROBLEMS)


def test_it_has_the_codes_of_the_source_and_no_other() -> None:
    found = {error.code for error in subclasses(Refused) if hasattr(error, "code")}
    for folder in ("ingestd", "plugins", "testing"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text()
            # Most modules have none, and parsing takes long.
            if "openapi" not in path.relative_to(ROOT).parts and re.search(r"\bcode\s*=", source):
                found |= {*codes(ast.parse(source))}
    # Errors of plugins that name no code have the last two.
    assert found == {*CODES, "invalid_body", "no_access"}


@pytest.mark.parametrize("example", PROBLEMS, ids=CODES)
def test_the_example_of_a_problem_is_an_answer_of_the_daemon(example: dict[str, Any]) -> None:
    error = next(each for each in Refused.__subclasses__() if each.status == example["status"])(example["detail"])
    error.code = example["code"]
    error.errors = [SchemaViolation(**each) for each in example.get("errors", ())]
    assert json.loads(problem(error).body) == example


def subclasses(error: type[Refused]) -> Iterator[type[Refused]]:
    for each in error.__subclasses__():
        yield each
        yield from subclasses(each)


def codes(tree: ast.AST) -> Iterator[str]:
    """The texts of the keyword argument `code`, and of constants that an expression there may name."""
    constants: dict[str, object] = {
        node.targets[0].id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "code":
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.value
                elif isinstance(inner, ast.Name) and inner.id in constants:
                    yield str(constants[inner.id])


def test_an_operation_has_the_answers_that_it_can_give() -> None:
    for path, operation in OPERATIONS.items():
        own, answers = OWN_OPERATIONS[path], operation["responses"]
        batch, event, signed = own.batch, not own.endpoint.identifies, not own.endpoint.is_public
        always = {"200", "400", "401", "403", "408", "413", "415", "429", "431", "500", "503"}
        assert {*answers} == always | ({"404"} if event and not batch else set())
        for status, answer in answers.items():
            assert ("Retry-After" in answer["headers"]) == (status in {"429", "503"})
        told = {
            code for answer in answers.values() for code in next(iter(answer["content"].values())).get("examples", {})
        }
        never = {"not_found", "method_not_allowed"}
        never |= set() if event and not batch else {"unknown_key", "invalid_data"}
        never |= set() if signed else {"invalid_signature", "no_app_access", "no_permission"}
        never |= set() if signed and not batch else {"stale_timestamp"}
        assert told == {*CODES} - never


@pytest.mark.parametrize("example", [*COMPONENTS["examples"]])
def test_an_example_is_valid(example: str) -> None:
    reference = {"$ref": f"#/components/examples/{example}"}
    value = COMPONENTS["examples"][example]["value"]
    schemas = [
        media["schema"]["$ref"].rpartition("/")[2]
        for media in nodes(DOCUMENT["paths"])
        if "schema" in media and reference in media.get("examples", {}).values()
    ]
    assert schemas or value["code"] in {"not_found", "method_not_allowed"}  # no operation has such an answer
    for schema in schemas or ["Problem"]:
        assert schema_of(schema).is_valid(value)


def test_every_event_key_has_an_example() -> None:
    content = DOCUMENT["paths"][f"{BASE_PATH}/track"]["post"]["requestBody"]["content"]["application/json"]
    names = [each["$ref"].rpartition("/")[2] for each in content["examples"].values()]
    assert sorted(COMPONENTS["examples"][name]["value"]["key"] for name in names) == sorted(KEYS)


# Schemas


def is_accepted(validator: Validator, body: dict[str, Any]) -> bool:
    try:
        validator.event(body)
    except Refused:
        return False
    return True


def test_the_document_accepts_the_events_that_the_validator_accepts() -> None:
    """A deviation in either direction would be found: some mutations spoil a body, others do not."""
    validator, document = Validator.load(), schema_of("AnyEvent")
    chance = random.Random(46)
    results = []
    for body in valid_bodies():
        for spoilt in [body, *(mutate_value(chance, body) for _ in range(60))]:
            results.append(is_accepted(validator, spoilt))
            assert document.is_valid(spoilt) == results[-1], spoilt
    assert 200 < sum(results) < len(results) - 200


def test_a_batch_takes_events_and_identify_requests() -> None:
    batch = schema_of("Batch")
    event: dict[str, Any] = {"key": "Page View", "anonymousId": "a", "data": {}}
    identify: dict[str, Any] = {"type": "identify", "anonymousId": "a", "traits": {}}
    assert batch.is_valid({"events": [event, {**event, "type": "event"}, identify], "sentAt": "now"})
    for wrong in (
        {},
        {**event, "type": "identify", "anonymousId": ""},
        {**identify, "type": "event"},
        {**event, "type": "identify", "traits": 1},
        {**event, "type": 1},
        None,
    ):
        assert not batch.is_valid({"events": [event, wrong]})
    assert batch.is_valid({"events": [event] * MAX_EVENTS})
    wrong_batch: Any
    for wrong_batch in ({}, {"events": []}, {"events": [event] * (MAX_EVENTS + 1)}, {"events": event}, [event]):
        assert not batch.is_valid(wrong_batch)


def test_a_shops_key_is_in_the_union_and_refers_to_built_in_definitions() -> None:
    own = shop_file(
        "urn:shop:schema:gift_wrapped", "Gift Wrapped",
        description="Sent when something is wrapped.", required=["item"],
        properties={"item": {"$ref": "urn:ingestd:definition:product_with_quantity"}}, examples=[{"item": {}}],
    )  # fmt: skip
    document = make_document([*BUILT_IN, own], SERVER)
    event = schema_of("AnyEvent", document)
    body: dict[str, Any] = {"key": "Gift Wrapped", "anonymousId": "a", "data": {"item": {"quantity": 2}}}
    assert event.is_valid(body)
    assert not event.is_valid({**body, "data": {}})
    assert not event.is_valid({**body, "data": {"item": {"quantity": "2"}}})
    schemas = document["components"]["schemas"]
    assert schemas["AnyEvent"]["discriminator"]["mapping"]["Gift Wrapped"] == "#/components/schemas/GiftWrappedEvent"
    assert schemas["GiftWrapped"]["description"] == "Sent when something is wrapped."
    assert document["components"]["examples"]["GiftWrappedEvent"]["value"]["data"] == {"item": {}}


def test_a_description_beside_a_reference_survives() -> None:
    own = shop_file("urn:shop:a", "A", properties={"b": {"$ref": "urn:ingestd:definition:product", "description": "B"}})
    made = SchemaComponents([*BUILT_IN, own], taken=[]).schemas()["A"]
    assert made["properties"]["b"] == {"description": "B", "allOf": [{"$ref": "#/components/schemas/Product"}]}


def test_each_object_that_several_schemas_inherit_has_a_name_and_a_place_of_its_own() -> None:
    """A generator of clients makes a class of it, and fails if it finds the same one twice.

    Beside one reference in `allOf`, it does not see properties; nor can it narrow an inherited one.
    """
    size = {"type": "object", "properties": {"width": {"type": "number"}}}
    own = [
        shop_file("urn:shop:box", None, title="Box", type="object", properties={"size": size}),
        shop_file("urn:shop:a", "A", properties={
            "box": {"$ref": "urn:shop:box", "description": "B"}, "lid": {"$ref": "urn:shop:box#/properties/size"},
            "page": {"$ref": "urn:ingestd:definition:envelope#/properties/context/properties/page"},
            "width": {"$ref": "urn:shop:box#/properties/size/properties/width"},
            "seal": {"$ref": "#/$defs/seal"},
            "quantity": {"$ref": "urn:ingestd:definition:product_with_quantity#/properties/quantity"},
        }, **{"$defs": {"seal": size}}),
    ]  # fmt: skip
    schemas = make_document([*BUILT_IN, *own], SERVER)["components"]["schemas"]
    assert schemas["Box"]["properties"] == {"size": {"$ref": "#/components/schemas/Size"}}
    assert schemas["Size"] == schemas["Seal"] == size
    assert [schemas["A"]["properties"][each]["$ref"] for each in ("lid", "page", "width", "seal", "quantity")] == [
        f"#/components/schemas/{each}"
        for each in (
            "Size", "Page", "Size/properties/width", "Seal", "ProductWithQuantity/allOf/1/properties/quantity",
        )
    ]  # fmt: skip
    for name in ("Envelope", "Event", "Identify", "Context", "Campaign", "Product", "Order", "Promotion"):
        own = schemas[name]["allOf"][-1] if "allOf" in schemas[name] else schemas[name]
        assert not any(each.get("type") == "object" for each in own["properties"].values()), name
    assert [name for name, schema in schemas.items() if {"allOf", "properties"} <= schema.keys()] == []
    event = schemas["OrderCompletedEvent"]["allOf"]
    assert event[0] == {"$ref": "#/components/schemas/Envelope"}
    assert (event[1]["required"], {*event[1]["properties"]}) == (["key", "data"], {"key", "data", "dispatchId"})


TEXT = {"type": "string"}

KEYWORDS = (
    ["additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
     "unevaluatedItems", "unevaluatedProperties"],
    ["allOf", "anyOf", "oneOf", "prefixItems"],
    ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"],
)  # fmt: skip
"""The keywords that contain one schema, a list of schemas, and schemas by name."""


@pytest.mark.parametrize(
    ("uri", "keywords"),
    [
        ("urn:shop:a", {"$defs": {"x": TEXT}, "properties": {"x": {"$ref": "#/$defs/x"}}}),
        ("urn:shop:a", {"$defs": {"x": TEXT}, "properties": {"x": {"$ref": "urn:shop:a#/$defs/x"}}}),
        ("urn:shop:a", {"$defs": {"a/b": TEXT}, "properties": {"x": {"$ref": "#/$defs/a~1b"}}}),
        ("urn:shop:a", {"$defs": {"a b": TEXT}, "properties": {"x": {"$ref": "#/$defs/a%20b"}}}),
        ("urn:shop:a", {"$defs": {"y": {**TEXT, "$anchor": "x"}}, "properties": {"x": {"$ref": "#x"}}}),
        ("urn:shop:a", {"$defs": {"y": {**TEXT, "$dynamicAnchor": "x"}}, "properties": {"x": {"$dynamicRef": "#x"}}}),
        ("urn:shop:a", {"properties": {"x": {"$ref": "urn:shop:text"}}}),
        ("urn:shop:a", {"properties": {"x": {"$ref": "urn:shop:text#"}}}),
        ("https://shop.example/schemas/a", {"properties": {"x": {"$ref": "text"}}}),
        ("https://shop.example/schemas/a", {"properties": {"x": {"$ref": "/schemas/text#/$defs/same"}}}),
        ("urn:shop:a", {"properties": {"x": TEXT, "inner": {"$ref": "#"}}}),
        ("urn:shop:a", {"allOf": [{"properties": {"x": TEXT}}, {"$ref": "#/allOf/0"}]}),
        ("urn:shop:a", {"additionalProperties": {"anyOf": [{"$ref": "urn:shop:text"}]}}),
        ("urn:shop:a", {"patternProperties": {"^x": {"$ref": "urn:shop:text"}}, "additionalProperties": False}),
        ("urn:shop:a", {"$ref": "urn:shop:holder", "unevaluatedProperties": False}),
        ("urn:shop:a", {"properties": {"x": {"not": {"$ref": "urn:shop:no_text"}}}}),
    ],
)
def test_every_form_of_reference_is_followed(uri: str, keywords: dict[str, Any]) -> None:
    folder = uri.removesuffix("a")
    files = [
        *BUILT_IN,
        shop_file(f"{folder}text", None, **TEXT, **{"$defs": {"same": TEXT}}),
        shop_file(f"{folder}no_text", None, type=["number", "array"]),
        shop_file(f"{folder}holder", None, properties={"x": TEXT}),
        shop_file(uri, "A", **keywords),
    ]
    validator, document = Validator(files), schema_of("AnyEvent", make_document(files, SERVER))
    data: dict[str, Any]
    for data in ({"x": "text"}, {"x": 1}, {"x": []}, {}, {"y": 1}, {"inner": {"x": 1}}, {"inner": {"x": ""}}):
        body: dict[str, Any] = {"key": "A", "anonymousId": "a", "data": data}
        assert document.is_valid(body) == is_accepted(validator, body), data


def test_values_that_look_like_references_stay() -> None:
    data: dict[str, Any] = {"$ref": "urn:shop:nowhere", "$id": "x", "properties": {"$ref": 1}}
    own = shop_file("urn:shop:a", "A", const=data, enum=[data], default=data, examples=[data])
    made = SchemaComponents([own], taken=[]).schemas()["A"]
    assert (made["const"], made["enum"], made["default"], made["examples"]) == (data, [data], data, [data])


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    names = {"$ref": TEXT, "$id": TEXT, "allOf": TEXT, "properties": TEXT}
    own = shop_file("urn:shop:a", "A", properties=names)
    assert SchemaComponents([own], taken=[]).schemas()["A"]["properties"] == names


def test_schemas_are_found_under_every_keyword_that_has_them() -> None:
    """As `referencing` knows them."""
    one, named = {"$ref": "urn:shop:b"}, {"name": {"$ref": "urn:shop:b"}}
    schema: dict[str, Any] = dict.fromkeys(KEYWORDS[0], one)
    schema |= {keyword: [one] for keyword in KEYWORDS[1]} | dict.fromkeys(KEYWORDS[2], named)
    known = [*DRAFT202012.create_resource({"$schema": DRAFT, **schema}).subresources()]
    assert len(known) == len(schema)
    made = SchemaComponents([shop_file("urn:shop:b", None), shop_file("urn:shop:a", "A", **schema)], taken=[]).schemas()
    assert json.dumps(made).count("#/components/schemas/UrnShopB") == len(known)
    assert "urn:" not in json.dumps(made)


@pytest.mark.parametrize(
    ("titles", "names"),
    [
        (["Gift Wrapped"], ["GiftWrapped"]),
        (["gift wrapped", "Gift Wrapped"], ["GiftWrapped", "GiftWrapped2"]),
        (["Geschenk über 50 €"], ["GeschenkBer50"]),
        (["ギフト", "贈り物"], ["Schema", "Schema2"]),
        (["Problem", "Any event"], ["Problem2", "AnyEvent2"]),
    ],
)
def test_names_of_components_are_made_of_words_and_unique(titles: list[str], names: list[str]) -> None:
    files = [shop_file(f"urn:shop:{number}", title) for number, title in enumerate(titles)]
    document = make_document([*BUILT_IN, *files], SERVER)
    mapping = document["components"]["schemas"]["AnyEvent"]["discriminator"]["mapping"]
    assert mapping.keys() >= {*titles}
    assert document["components"]["schemas"].keys() >= {*names}
    assert [error.message for error in Draft202012Validator(OPENAPI_31).iter_errors(document)] == []
    for title in titles:
        assert schema_of("AnyEvent", document).is_valid({"key": title, "anonymousId": "a", "data": {}})
