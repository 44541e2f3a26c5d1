"""What schemathesis must know of ingestd: how to sign requests, and what the answer to a batch promises.

`tests/data/schemathesis.toml` names this module. The environment has the keys: PUBLIC_KEY, SERVER_KEY, SERVER_SECRET.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import Any

import schemathesis
from schemathesis.core.parameters import ParameterLocation

KEYS = ("Order Completed", "Product List Filtered", "Promotion Clicked", "Page View", "Gift Wrapped")
"""Keys with lists of products, values of any type, plain fields, no fields, and a field that is required."""

SIGNED_PATHS = r"/(customer-events(/batch)?|identify)$"


@schemathesis.hook
def before_load_schema(context: Any, schema: dict[str, Any]) -> None:
    """Merge the parts of each `allOf`, and make requests for a few event keys.

    Schemathesis spoils one part at a time and leaves the others out, so its requests would lack what these require.
    With all keys it would send forty thousand requests. The examples in the document still have every key.
    """
    components = schema["components"]["schemas"]
    schema["components"]["schemas"] = {name: _merged(each, components) for name, each in components.items()}
    events = schema["components"]["schemas"]["AnyEvent"]
    mapping = events["discriminator"]["mapping"] = {key: events["discriminator"]["mapping"][key] for key in KEYS}
    events["oneOf"] = [{"$ref": each} for each in mapping.values()]


def _merged(schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    parts = [_merged(_resolved(part, components), components) for part in schema.get("allOf", [])]
    if not parts or any("oneOf" in part for part in parts):
        return schema
    every = [*parts, {name: value for name, value in schema.items() if name != "allOf"}]
    made = {name: value for part in every for name, value in part.items()}
    made["properties"] = {name: value for part in every for name, value in part.get("properties", {}).items()}
    if required := sorted({name for part in every for name in part.get("required", [])}):
        made["required"] = required
    return made


def _resolved(schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    target: dict[str, Any] = components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return target


class Bearer:
    """Sends a key. `requests` calls it with each request."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self.key}"
        return request


class Signature(Bearer):
    """Sends a key, and signs the body as it goes over the wire."""

    def __init__(self, key: str, secret: str) -> None:
        super().__init__(key)
        self.secret = secret.encode()

    def __call__(self, request: Any) -> Any:
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        request.headers["x-signature"] = hmac.digest(self.secret, body, hashlib.sha256).hex()
        return super().__call__(request)


class Credentials:
    """Gives a request its credentials, unless it is to be sent with wrong ones or none."""

    def __init__(self, auth: Bearer) -> None:
        self.auth = auth

    def get(self, case: Any, context: Any) -> Bearer | None:
        wrong = case.meta is not None and case.meta.is_negative_at(ParameterLocation.HEADER)
        return None if wrong else self.auth

    def set(self, case: Any, data: Bearer, context: Any) -> None:
        case._auth = data  # as schemathesis' own provider for `requests` does


@schemathesis.auth(refresh_interval=None).apply_to(path_regex=SIGNED_PATHS)
class ServerCredentials(Credentials):
    def __init__(self) -> None:
        super().__init__(Signature(os.environ["SERVER_KEY"], os.environ["SERVER_SECRET"]))


@schemathesis.auth(refresh_interval=None).skip_for(path_regex=SIGNED_PATHS)
class PublicCredentials(Credentials):
    def __init__(self) -> None:
        super().__init__(Bearer(os.environ["PUBLIC_KEY"]))


@schemathesis.check
def a_problem_has_its_status_and_a_documented_code(ctx: Any, response: Any, case: Any) -> None:
    """The schema of the document leaves the code open, because plugins may add codes."""
    if response.status_code < 400 or response.request.method != "POST":
        return
    problem = response.json()
    media = case.operation.definition.raw["responses"][str(response.status_code)]["content"]
    assert problem["status"] == response.status_code
    assert problem["code"] in media["application/problem+json"]["examples"]


@schemathesis.check
def a_batch_has_a_result_for_each_event(ctx: Any, response: Any, case: Any) -> None:
    """Valid events are stored. Of a batch that does not follow its schema, some event is refused."""
    if not case.operation.path.endswith("/batch") or response.status_code != 200:
        return
    stored = [result["status"] == 200 for result in response.json()["results"]]
    assert len(stored) == len(case.body["events"])
    assert all(stored) == (not case.meta.is_negative_at(ParameterLocation.BODY))
