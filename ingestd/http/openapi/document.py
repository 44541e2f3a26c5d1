"""The OpenAPI document: the operations with their bodies, answers, problems and credentials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ingestd import __version__
from ingestd.api.options import Address
from ingestd.http.app import BASE_PATH
from ingestd.pipeline.batch_parser import MAX_EVENTS
from ingestd.validation.schema_files import SchemaFile

from .answers import ANSWER_SCHEMAS, answers, headers, problem_examples
from .operations import OPERATIONS, Body, Operation
from .schema_components import SchemaComponents, location

__all__ = ["listener_url", "make_document", "to_json"]

Schema = dict[str, Any]

_EVENT = "urn:ingestd:definition:event"
_IDENTIFY = "urn:ingestd:definition:identify"

_DESCRIPTION = """\
ingestd takes the events of a shop's visitors and users.

- A body is a JSON object in UTF-8. Its media type need not be `application/json`: browsers may send `text/plain`.
- A body may have `Content-Encoding: gzip`.
- Fields that a schema does not name are stored too.
- A 200 means that the event is stored durably.
- An error is a problem document (RFC 9457). Its `code` is a stable word for programs.
- Send a request again after a 429, a 503 or no answer, best with a `messageId`. An event with the same `messageId`
  is stored once within 24 hours.
- Browsers may read every answer. `OPTIONS` answers a preflight with 204, other methods get 405, other paths get 404.
- A trailing slash makes no difference to a path.
"""

_BODIES: Mapping[Body, str] = {
    Body.EVENT: "The event. The schema of `data` depends on `key`.",
    Body.IDENTIFY: "The visitor, the user if known, and traits.",
    Body.BATCH: f"1 to {MAX_EVENTS} events and identify requests, which take effect in their order. A faulty one is"
    " refused alone: the answer is still 200, and its result has the problem.",
}

_SECURITY_SCHEMES = {
    "publicKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "A public key. It is no secret, and can only send events.",
    },
    "serverKey": {
        "type": "http",
        "scheme": "bearer",
        "description": "The id of a server key, a UUID. The request also needs a signature.",
    },
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "x-signature",
        "description": "The HMAC-SHA256 of the body before compression, in hex, keyed with the secret of the server"
        " key. Up to 64 KiB, the HMAC-SHA256 of `JSON.stringify(JSON.parse(body))` is accepted too.",
    },
}

_TAGS = {
    False: ("Public", "For browsers and apps, with a public key."),
    True: ("Server", "For servers, with a server key and a signature."),
}

_NAMES = (
    "AnyEvent", "Batch", "BatchIdentify", "BatchItem", "SignedBatch", "SignedBatchIdentify", "SignedBatchItem",
    "SignedIdentify",
)  # fmt: skip


def listener_url(listen: Address) -> str:
    """The URL of a listener, for a client on the same machine if it listens on all addresses."""
    anywhere = listen.host in {"0.0.0.0", "::"}  # noqa: S104 - it is replaced, not listened on
    return f"http://{Address('localhost', listen.port) if anywhere else listen}"


def make_document(files: Sequence[SchemaFile], server: str) -> dict[str, Any]:
    """The document of the API with these schema files. `server` is the URL in front of the paths.

    Equal files give equal documents, in which all members have the same order.
    """
    components = SchemaComponents(files, taken=[*_NAMES, *ANSWER_SCHEMAS])
    events = {file.key: file for file in files if file.key is not None}
    names = {key: components.new_name(f"{key} Event") for key in events}
    examples = {
        names[key]: {"summary": key, "value": _example(file)}
        for key, file in events.items()
        if file.schema.get("examples")
    }
    bodies = {
        Body.EVENT: _body(location("AnyEvent"), examples),
        Body.IDENTIFY: _body(components.location_of(_IDENTIFY), _IDENTIFY_EXAMPLES),
        Body.BATCH: _body(location("Batch"), _BATCH_EXAMPLES),
    }
    signed_bodies = {
        **bodies,
        Body.IDENTIFY: _body(location("SignedIdentify"), _IDENTIFY_EXAMPLES),
        Body.BATCH: _body(location("SignedBatch"), _BATCH_EXAMPLES),
    }
    paths = {
        f"{BASE_PATH}{each.path}": {"post": _operation(each, (signed_bodies if each.signed else bodies)[each.body])}
        for each in OPERATIONS
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ingestd",
            "summary": "Customer-event ingestion for e-commerce",
            "description": _DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
            "version": __version__,
        },
        "servers": [{"url": server}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.values()],
        "paths": paths,
        "components": {
            "schemas": {
                **_event_schemas(components, events, names),
                **_batch_schemas(components),
                **components.schemas(),
                **ANSWER_SCHEMAS,
            },
            "examples": {**examples, **_IDENTIFY_EXAMPLES, **_BATCH_EXAMPLES, **problem_examples()},
            "headers": headers(),
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


def to_json(document: Mapping[str, Any]) -> bytes:
    """The document as indented JSON with a line break at the end."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _operation(operation: Operation, body: Schema) -> Schema:
    signed = operation.signed
    return {
        "tags": [_TAGS[signed][0]],
        "operationId": operation.id,
        "summary": operation.summary,
        "security": [{"serverKey": [], "signature": []} if signed else {"publicKey": []}],
        "requestBody": {"description": _BODIES[operation.body], **body},
        "responses": answers(operation),
    }


def _body(schema: str, examples: Iterable[str]) -> Schema:
    content: Schema = {"schema": {"$ref": schema}}
    content["examples"] = {name: {"$ref": f"#/components/examples/{name}"} for name in examples}
    return {"required": True, "content": {"application/json": content}}


def _event_schemas(
    components: SchemaComponents, events: Mapping[str, SchemaFile], names: Mapping[str, str]
) -> Mapping[str, Schema]:
    """The schema of each event, and of their union."""
    union = {
        "title": "Any event",
        "description": "An event with one of the known keys.",
        "oneOf": [{"$ref": location(name)} for name in names.values()],
        "discriminator": {"propertyName": "key", "mapping": {key: location(name) for key, name in names.items()}},
    }
    made = {"AnyEvent": union}
    for key, file in events.items():
        made[names[key]] = {
            "title": f"{key} event",
            "description": str(file.schema.get("description", "")),
            "allOf": [
                {"$ref": components.location_of(_EVENT)},
                {
                    "type": "object",
                    "properties": {
                        "key": {"type": "string", "const": key},
                        "data": {"$ref": components.location_of(file.uri)},
                    },
                },
            ],
        }
    return made


def _batch_schemas(components: SchemaComponents) -> Mapping[str, Schema]:
    identify = components.location_of(_IDENTIFY)
    is_identify = {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"type": "string", "const": "identify"}},
    }
    signed_identify = location("SignedIdentify")
    return {
        "Batch": _batch("Batch", "Events and identify requests.", "BatchItem"),
        "BatchItem": _batch_item("Batch item", is_identify, "BatchIdentify", identify),
        "BatchIdentify": {"title": "Identify request of a batch", "allOf": [{"$ref": identify}, is_identify]},
        # A signed body is valid for one purpose.
        "SignedBatch": {
            **_batch("Signed batch", "Events and identify requests, which have no `key`.", "SignedBatchItem"),
            "not": {"required": ["anonymousId"]},
        },
        "SignedBatchItem": _batch_item("Signed batch item", is_identify, "SignedBatchIdentify", signed_identify),
        "SignedBatchIdentify": {
            "title": "Identify request of a signed batch",
            "allOf": [{"$ref": signed_identify}, is_identify],
        },
        "SignedIdentify": {
            "title": "Signed identify request",
            "description": "An identify request without `key`.",
            "allOf": [{"$ref": identify}],
            "not": {"required": ["key"]},
        },
    }


def _batch(title: str, description: str, item: str) -> Schema:
    return {
        "title": title,
        "description": f"{description} Members other than `events` and `sentAt` are ignored.",
        "type": "object",
        "required": ["events"],
        "properties": {
            "events": {"type": "array", "minItems": 1, "maxItems": MAX_EVENTS, "items": {"$ref": location(item)}},
            "sentAt": {
                "description": "The time of sending by the client's clock. `/batch` corrects `timestamp` by it."
            },
        },
    }


def _batch_item(title: str, is_identify: Schema, member: str, identify: str) -> Schema:
    # `if` and `then` settle the rare event that is also an identify request. Generators of code ignore them.
    return {
        "title": title,
        "description": "An event, or an identify request with its `type`.",
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["event", "identify"]}},
        "anyOf": [{"$ref": location("AnyEvent")}, {"$ref": location(member)}],
        "if": is_identify,
        "then": {"$ref": identify},
    }


def _example(file: SchemaFile) -> Schema:
    return {"key": file.key, "anonymousId": "visitor-1", "data": file.schema["examples"][0]}


_IDENTIFY_EXAMPLES = {
    "KnownUser": {
        "summary": "A visitor who has signed in",
        "value": {
            "anonymousId": "visitor-1",
            "userId": "u-17",
            "traits": {"email": "shopper@shop.example", "firstName": "Ada", "plan": "gold"},
        },
    },
    "UnknownUser": {
        "summary": "Traits of a visitor who has not signed in",
        "value": {"anonymousId": "visitor-1", "traits": {"newsletter": True}},
    },
}

_BATCH_EXAMPLES = {
    "EventsAndIdentify": {
        "summary": "A visitor looks at a product and signs in",
        "value": {
            "events": [
                {"key": "Product Viewed", "anonymousId": "visitor-1", "data": {"product_id": "p-1"}},
                {"type": "identify", "anonymousId": "visitor-1", "userId": "u-17"},
                {"key": "Signed In", "anonymousId": "visitor-1", "data": {}, "messageId": "m-2"},
            ]
        },
    },
}
