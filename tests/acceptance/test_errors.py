"""The contract's promises about all answers except 200: statuses, their precedence, form and counts."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tests.support.daemon import BASE, Daemon, Key, Reply, Shop, sign
from tests.support.event_keys import KEYS

PATHS = {"track": "/track", "customer-events": "/customer-events", "identify": "/identify/public"}
TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
}
MAX_BODY = 20_000

VISITOR = {"anonymousId": "visitor"}
GOOD: dict[str, Any] = {"key": "Product Viewed", "data": {"price": 1}, **VISITOR}
BAD_DATA: dict[str, Any] = {**GOOD, "data": {"price": "1"}}
UNKNOWN_KEY: dict[str, Any] = {**GOOD, "key": "product viewed"}
BAD_ENVELOPE: dict[str, Any] = {"key": "Product Viewed", "data": {"price": 1}}
NOT_JSON = b'{"key": "Product Viewed", '


@dataclass
class Site:
    """A shop with a running daemon, and credentials of all kinds by name."""

    shop: Shop
    daemon: Daemon
    keys: dict[str, Key]

    def send(self, case: Case) -> Reply:
        path, raw, headers = self.request(case)
        return self.daemon.request("POST", path, raw, headers)

    def request(self, case: Case) -> tuple[str, bytes, dict[str, str]]:
        """The path, the body and the headers."""
        raw = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
        headers = dict(case.headers)
        key = self.keys[case.credential] if case.credential is not None else None
        if key is not None:
            headers["Authorization"] = f"Bearer {key.id}"
        if case.signature is not None:
            headers["x-signature"] = case.signature
        elif key is not None and key.secret:
            headers["x-signature"] = sign(key.secret, raw)
        return BASE + PATHS[case.endpoint], raw, headers

    def counts(self) -> dict[str, float]:
        """The samples of the counters of events and identify requests."""
        lines = self.daemon.ops("/metrics").body.decode().splitlines()
        samples = [line.rpartition(" ") for line in lines]
        names = ("ingestd_events_total{", "ingestd_identifies_total{")
        return {name: float(value) for name, _, value in samples if name.startswith(names)}


class Case(NamedTuple):
    """A request and its expected answer. Server keys sign the body, unless `signature` is given."""

    status: int
    code: str
    outcome: str
    body: bytes | dict[str, Any] | list[Any]
    endpoint: str = "track"
    credential: str | None = "public"
    signature: str | None = None
    headers: dict[str, str] = {}  # noqa: RUF012 - a default of a tuple that nobody changes
    key: str = ""
    """The label of the metric."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, http_server: str) -> Iterator[Site]:
    options = f'server = "{http_server}"\nmax_body = "{MAX_BODY}B"'
    shop = Shop(tmp_path_factory.mktemp("errors"), {"http": options})
    keys = keys_of(shop)
    with shop.serve() as daemon:
        yield Site(shop, daemon, keys)


def keys_of(shop: Shop) -> dict[str, Key]:
    """Credentials of all kinds by name."""

    def server_key(*grants: str) -> Key:
        printed = shop.command("keys", "create", "--kind", "server", "--tenant", "shop", "--json", *grants)
        made = json.loads(printed)
        return Key(made["id"], made["secret"])

    keys = {
        "public": shop.public,
        "server": shop.server,
        "no grants": server_key(),
        "no CRM": server_key("--app", "SHOP", "--permission", "ADMIN"),
        "no ADMIN": server_key("--app", "CRM", "--permission", "READ"),
        "revoked": shop.create_key("public", "shop"),
        "revoked server": shop.create_key("server", "shop"),
        "unknown": Key("pk_nobody_has_this_one"),
        "unknown server": Key("3f2c8a54-9f6e-4c52-9d0e-7f1f6d0b8a11", "secret"),
        "the secret": Key(shop.server.secret),
        "a part": Key(shop.public.id[:-1]),
        "with more": Key(shop.public.id + " x"),
    }
    for name in ("revoked", "revoked server"):
        shop.command("keys", "revoke", keys[name].id)
    return keys


def on(endpoint: str, *cases: Case) -> list[Case]:
    return [case._replace(endpoint=endpoint) for case in cases]


BASIC = {"Authorization": "Basic dXNlcjpwYXNz"}
WRONG = "0" * 64

NO_PUBLIC_KEY = [
    Case(401, "missing_key", "unauthorized", GOOD, credential=None),
    Case(401, "missing_key", "unauthorized", GOOD, credential=None, headers=BASIC),
    Case(401, "missing_key", "unauthorized", GOOD, credential=None, headers={"Authorization": "Bearer"}),
    Case(401, "missing_key", "unauthorized", GOOD, credential=None, headers={"Authorization": ""}),
    *(
        Case(401, "invalid_key", "unauthorized", GOOD, credential=name)
        for name in ("unknown", "unknown server", "server", "revoked", "revoked server", "a part", "with more")
    ),
    # Two faults: the key is checked first.
    Case(401, "missing_key", "unauthorized", NOT_JSON, credential=None),
    Case(401, "invalid_key", "unauthorized", BAD_ENVELOPE, credential="unknown"),
    Case(401, "invalid_key", "unauthorized", UNKNOWN_KEY, credential="revoked"),
    Case(401, "invalid_key", "unauthorized", BAD_DATA, credential="server"),
    Case(401, "missing_key", "unauthorized", b"x", credential=None, headers={"Content-Encoding": "br"}),
]
NO_SERVER_KEY = [
    Case(401, "missing_key", "unauthorized", GOOD, credential=None),
    Case(401, "missing_key", "unauthorized", GOOD, credential=None, headers=BASIC),
    *(
        Case(401, "invalid_key", "unauthorized", GOOD, credential=name)
        for name in ("unknown", "unknown server", "revoked", "revoked server", "the secret")
    ),
    *(
        Case(401, "invalid_signature", "unauthorized", GOOD, credential="server", signature=signature)
        for signature in (WRONG, "", "0" * 63, "0" * 66, "zz" * 32, "sha256=" + WRONG)
    ),
    # Two faults: the order is key, signature, grants, body.
    Case(401, "invalid_key", "unauthorized", NOT_JSON, credential="unknown server", signature=WRONG),
    Case(401, "invalid_signature", "unauthorized", NOT_JSON, credential="server", signature=WRONG),
    Case(401, "invalid_signature", "unauthorized", UNKNOWN_KEY, credential="no CRM", signature=WRONG),
    Case(401, "invalid_signature", "unauthorized", GOOD, credential="no ADMIN", signature=WRONG),
    Case(403, "no_app_access", "forbidden", GOOD, credential="no grants"),
    Case(403, "no_app_access", "forbidden", GOOD, credential="no CRM"),
    Case(403, "no_permission", "forbidden", GOOD, credential="no ADMIN"),
    Case(403, "no_app_access", "forbidden", GOOD, credential="public"),
    Case(403, "no_app_access", "forbidden", GOOD, credential="public", signature=WRONG),
    Case(403, "no_app_access", "forbidden", NOT_JSON, credential="public", signature=WRONG),
    Case(403, "no_app_access", "forbidden", BAD_ENVELOPE, credential="no CRM"),
    Case(403, "no_permission", "forbidden", UNKNOWN_KEY, credential="no ADMIN"),
    Case(403, "no_permission", "forbidden", NOT_JSON, credential="no ADMIN"),
]
BAD_BODY = [
    *(
        Case(400, "invalid_json", "invalid", raw)
        for raw in (
            b"", b" ", NOT_JSON, b"{}{}", b"\xef\xbb\xbf{}", b'{"key": "\xff"}', b"{'a': 1}", b'{"a": NaN}',
            b'{"a":' * 3000, b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", b"key=value",
        )
    ),
    *(Case(400, "not_an_object", "invalid", raw) for raw in (b"[]", b"null", b"1", b'"text"', b"true", b"[{}]")),
    Case(413, "too_large", "too_large", b" " * (MAX_BODY + 1)),
    Case(413, "too_large", "too_large", gzip.compress(b" " * (MAX_BODY + 1)), headers={"Content-Encoding": "gzip"}),
    Case(413, "too_large", "too_large", gzip.compress(b" " * 10_000_000), headers={"Content-Encoding": "gzip"}),
    *(
        Case(400, "invalid_encoding", "invalid", packed, headers={"Content-Encoding": "gzip"})
        for packed in (
            json.dumps(GOOD).encode(), b"", gzip.compress(b"{}")[:-1], gzip.compress(b"{}") + b"x",
            gzip.compress(b"{}")[:-8] + bytes(8),
        )
    ),
    *(
        Case(415, "unsupported_encoding", "invalid", GOOD, headers={"Content-Encoding": name})
        for name in ("br", "deflate", "zstd", "gzip, gzip", "compress", "nonsense")
    ),
]  # fmt: skip
WRONG_EVENT_FIELDS: list[tuple[str, Any]] = [
    ("data", None), ("data", []), ("anonymousId", ""), ("anonymousId", "x" * 513), ("anonymousId", None),
    ("anonymousId", 1), ("userId", 1), ("userId", False), ("sessionId", None), ("sessionId", "s-1"),
    ("sessionId", "3f2c8a549f6e4c529d0e7f1f6d0b8a11"), ("sessionId", "3f2c8a54-9f6e-4c52-9d0e-7f1f6d0b8a11\n"),
    ("dispatchId", None), ("dispatchId", 7), ("messageId", None), ("messageId", ""), ("messageId", "x" * 129),
    ("context", None), ("context", []), ("context", {"campaign": None}), ("context", {"campaign": "news"}),
    ("context", {"campaign": {"source": 1}}), ("context", {"campaign": {"medium": None}}),
    ("context", {"campaign": {"name": []}}), ("context", {"page": []}), ("context", {"page": {"url": 1}}),
]  # fmt: skip
BAD_EVENT = [
    Case(400, "invalid_envelope", "invalid", {}),
    Case(400, "invalid_envelope", "invalid", {**GOOD, "key": None}),
    Case(400, "invalid_envelope", "invalid", {**GOOD, "key": ["Product Viewed"]}),
    Case(400, "invalid_envelope", "invalid", BAD_ENVELOPE, key="Product Viewed"),
    *(
        Case(400, "invalid_envelope", "invalid", {**GOOD, name: value}, key="Product Viewed")
        for name, value in WRONG_EVENT_FIELDS
    ),
    Case(404, "unknown_key", "unknown_key", UNKNOWN_KEY),
    Case(404, "unknown_key", "unknown_key", {**GOOD, "key": ""}),
    Case(404, "unknown_key", "unknown_key", {**GOOD, "key": "Product Viewed "}),
    Case(404, "unknown_key", "unknown_key", {**GOOD, "key": 'x",outcome="accepted'}),
    Case(404, "unknown_key", "unknown_key", {**GOOD, "key": "é" * 1000}),
    Case(400, "invalid_data", "invalid", BAD_DATA, key="Product Viewed"),
    Case(400, "invalid_data", "invalid", {**GOOD, "data": {"price": True}}, key="Product Viewed"),
    Case(400, "invalid_data", "invalid", {**GOOD, "data": {"name": None}}, key="Product Viewed"),
    # Two faults: the order is envelope, event key, data.
    Case(400, "invalid_envelope", "invalid", {**BAD_ENVELOPE, "key": "Nothing"}),
    Case(400, "invalid_envelope", "invalid", {**UNKNOWN_KEY, "data": []}),
    Case(400, "invalid_envelope", "invalid", {**BAD_DATA, "sessionId": "s"}, key="Product Viewed"),
    Case(404, "unknown_key", "unknown_key", {**UNKNOWN_KEY, "data": {"price": "1"}}),
]  # fmt: skip
WRONG_IDENTIFY_FIELDS: list[tuple[str, Any]] = [
    ("anonymousId", ""), ("anonymousId", None), ("userId", 7), ("sessionId", "s"), ("sessionId", None),
    ("traits", None), ("traits", []), ("context", None), ("messageId", None), ("context", {"page": 1}),
]  # fmt: skip
BAD_IDENTIFY = [
    Case(400, "invalid_envelope", "invalid", {}),
    *(
        Case(400, "invalid_envelope", "invalid", {**VISITOR, name: value})
        for name, value in WRONG_IDENTIFY_FIELDS
    ),
]  # fmt: skip

SIGNED = [case._replace(credential="server") for case in [*BAD_BODY, *BAD_EVENT]]

CASES = [
    *on("track", *NO_PUBLIC_KEY, *BAD_BODY, *BAD_EVENT),
    *on("identify", *NO_PUBLIC_KEY, *BAD_BODY, *BAD_IDENTIFY),
    *on("customer-events", *NO_SERVER_KEY, *SIGNED),
]


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{number}-{case.endpoint}-{case.code}" for number, case in enumerate(CASES)]
)
def test_each_wrong_request_has_its_status_and_is_counted_once(site: Site, case: Case) -> None:
    before = site.counts()
    answer = site.send(case)
    assert_problem(answer, case.status, case.code)
    after = site.counts()
    changed = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
    if case.endpoint == "identify":
        assert changed == {f'ingestd_identifies_total{{outcome="{case.outcome}"}}': 1}
    else:
        labels = f'endpoint="{case.endpoint}",key="{case.key}",outcome="{case.outcome}"'
        assert changed == {f"ingestd_events_total{{{labels}}}": 1}


def assert_problem(answer: Reply, status: int, code: str) -> None:
    """Checks the common form of errors, which pages of any origin can read."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "location" not in answer.headers
    problem = answer.json()
    errors = problem.pop("errors", None)
    assert problem == {
        "type": problem["type"],
        "title": TITLES[status],
        "status": status,
        "detail": problem["detail"],
        "success": False,
        "code": code,
        "message": problem["message"],
    }
    for text in ("type", "detail", "message"):
        assert isinstance(problem[text], str)
        assert problem[text]
    if code in {"invalid_envelope", "invalid_data"}:
        assert errors
        assert all(set(error) == {"pointer", "message"} and error["message"] for error in errors)
    else:
        assert errors is None


def test_a_missing_signature_is_a_401(site: Site) -> None:
    answer = site.daemon.post("/customer-events", GOOD, site.shop.server.id)
    assert_problem(answer, 401, "invalid_signature")


def test_all_faults_are_reported_with_their_pointers(site: Site) -> None:
    body: dict[str, Any] = {
        "key": "Order Completed",
        "userId": 7,
        "sessionId": "s-1",
        "context": {"campaign": {"source": 1}, "page": {"url": None}},
        "data": {
            "order_id": 5,
            "total": "10",
            "products": [{"price": "1", "name": None}, "a product", {"quantity": []}, {"sku": "fine"}],
        },
    }
    answer = site.daemon.post("/track", body, site.shop.public.id)
    assert_problem(answer, 400, "invalid_envelope")
    assert {error["pointer"] for error in answer.json()["errors"]} == {
        "/anonymousId", "/userId", "/sessionId", "/context/campaign/source", "/context/page/url",
        "/data/order_id", "/data/total", "/data/products/0/price", "/data/products/0/name", "/data/products/1",
        "/data/products/2/quantity",
    }  # fmt: skip


def test_the_number_of_reported_faults_is_limited(site: Site) -> None:
    body = {**GOOD, "key": "Order Completed", "data": {"products": [7] * 900}}
    answer = site.daemon.post("/track", body, site.shop.public.id)
    assert_problem(answer, 400, "invalid_data")
    assert 1 < len(answer.json()["errors"]) <= 100


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", PATHS.values())
def test_other_methods_are_answered_with_the_allowed_ones_and_not_counted(site: Site, method: str, path: str) -> None:
    before = site.counts()
    answer = site.daemon.request(method, BASE + path, headers={"Authorization": f"Bearer {site.shop.public.id}"})
    assert answer.status == 405
    assert "POST" in answer.headers["allow"].split(", ")
    if method == "HEAD":
        assert answer.body == b""
    else:
        assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert site.counts() == before


UNKNOWN_PATHS = [
    "/", BASE, f"{BASE}/", f"{BASE}/track//", f"{BASE}/customer-events//", f"{BASE}/Identify", f"{BASE}//track",
    f"{BASE}/identify/public//", f"{BASE}/Track", "/api/v2/analytics/track", "/track", f"{BASE}/events",
    "/metrics", "/livez", "/readyz", f"{BASE}/../analytics/track", f"{BASE}/track%00",
]  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PUT"])
@pytest.mark.parametrize("path", UNKNOWN_PATHS)
def test_an_unknown_path_is_a_404_that_counts_nothing(site: Site, method: str, path: str) -> None:
    before = site.counts()
    headers = {"Authorization": f"Bearer {site.shop.public.id}"}
    assert_problem(site.daemon.request(method, path, json.dumps(GOOD).encode(), headers), 404, "not_found")
    assert site.counts() == before


def test_a_query_does_not_change_the_path(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.shop.public.id}"}
    answer = site.daemon.request("POST", f"{BASE}/track?v=1&key=x", json.dumps(GOOD).encode(), headers)
    assert answer.status == 200


# Sizes, sent over a socket because HTTP clients cannot send them


def converse(port: int, *parts: bytes) -> tuple[Reply, bytes]:
    """Sends the bytes, and returns the first answer and all bytes after it until the daemon closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        for part in parts:
            sock.sendall(part)
        received = b""
        while chunk := sock.recv(65536):
            received += chunk
    head, _, rest = received.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    length = int(headers["content-length"])
    return Reply(int(status.split(" ")[1]), headers, rest[:length]), rest[length:]


def head(site: Site, *lines: str) -> bytes:
    wanted = [
        f"POST {BASE}/track HTTP/1.1", "Host: shop", f"Authorization: Bearer {site.shop.public.id}", *lines, "", ""
    ]  # fmt: skip
    return "\r\n".join(wanted).encode()


def chunked(body: bytes, size: int) -> bytes:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def test_a_chunked_body_is_read(site: Site) -> None:
    body = chunked(json.dumps(GOOD).encode(), 7)
    answer, rest = converse(
        site.daemon.port, head(site, "Transfer-Encoding: chunked", "Connection: close"), body
    )  # fmt: skip
    assert (answer.status, rest) == (200, b"")


def test_a_chunked_body_that_is_too_large_is_a_413(site: Site) -> None:
    body = chunked(b" " * (MAX_BODY + 1), 1000)
    answer, rest = converse(site.daemon.port, head(site, "Transfer-Encoding: chunked", "Connection: close"), body)
    assert_problem(answer, 413, "too_large")
    assert rest == b""


def test_the_largest_body_is_read_and_the_connection_outlives_a_larger_one(site: Site) -> None:
    raw = json.dumps(GOOD).encode()
    largest, larger = raw.ljust(MAX_BODY), raw.ljust(MAX_BODY + 1)
    requests = [head(site, f"Content-Length: {len(body)}") + body for body in (larger, largest)]
    last = head(site, f"Content-Length: {len(raw)}", "Connection: close") + raw
    answer, rest = converse(site.daemon.port, *requests, last)
    assert_problem(answer, 413, "too_large")
    assert rest.count(b"HTTP/1.1 200 OK\r\n") == 2


@pytest.mark.parametrize("length", [str(100 * MAX_BODY), "9999999999999", "9" * 18, "9" * 30])
def test_an_enormous_declared_body_is_answered_at_once_and_the_connection_closed(site: Site, length: str) -> None:
    before = sum(site.counts().values())
    answer, rest = converse(site.daemon.port, head(site, f"Content-Length: {length}"), b'{"key": ')
    assert_problem(answer, 413, "too_large")
    assert rest == b""
    assert sum(site.counts().values()) == before + 1


def test_a_chunked_body_without_end_is_cut_off(site: Site) -> None:
    without_end = head(site, "Transfer-Encoding: chunked") + (b"2710\r\n" + b" " * 10_000 + b"\r\n") * 5000
    with (
        socket.create_connection(("127.0.0.1", site.daemon.port), timeout=20) as sock,
        pytest.raises(OSError, match=r"reset|Broken pipe"),
    ):
        sock.sendall(without_end)


def test_a_malformed_request_is_refused_and_not_quoted_in_the_log(site: Site) -> None:
    key = site.shop.public.id
    for line in (f"Authorization: Bearer {key}\x01", f"Content-Length: {key}", f"Transfer-Encoding: {key}", key):
        with socket.create_connection(("127.0.0.1", site.daemon.port), timeout=20) as sock:
            sock.sendall(head(site, line))
            assert sock.recv(65536).startswith(b"HTTP/1.1 400 ")
    site.daemon.read_log()
    assert key not in "\n".join(site.daemon.log)
    assert site.daemon.post("/track", GOOD, key).status == 200


# Browsers


@pytest.mark.parametrize("path", PATHS.values())
def test_a_preflight_is_answered_for_a_page_of_any_origin(site: Site, path: str) -> None:
    before = site.counts()
    answer = site.daemon.request(
        "OPTIONS",
        BASE + path,
        headers={
            "Origin": "https://shop.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        },
    )
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-methods"] == "POST"
    allowed = {name.strip().lower() for name in answer.headers["access-control-allow-headers"].split(",")}
    assert allowed == {"authorization", "content-type"}
    assert int(answer.headers["access-control-max-age"]) >= 600
    assert site.counts() == before


ALLOWED = ["https://shop.example", "http://localhost:3000"]


class Configured(NamedTuple):
    daemon: Daemon
    public: str


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory, http_server: str) -> Iterator[Configured]:
    options = f'allowed_origins = {json.dumps(ALLOWED)}\nallowed_headers = ["X-Shop-Version", "traceparent"]'
    shop = Shop(tmp_path_factory.mktemp("origins"), {"http": f'server = "{http_server}"\n{options}'})
    with shop.serve() as daemon:
        yield Configured(daemon, shop.public.id)


def test_configured_origins_are_echoed_and_others_are_not(configured: Configured) -> None:
    def origin_of(answer: Reply) -> str | None:
        assert answer.headers["vary"] == "Origin"
        return answer.headers.get("access-control-allow-origin")

    others = ["https://evil.example", "https://shop.example.evil.example", "http://shop.example", "null", ""]
    for origin in [*ALLOWED, *others]:
        echoed = origin if origin in ALLOWED else None
        for key, status in ((configured.public, 200), ("wrong", 401)):
            answer = configured.daemon.post("/track", GOOD, key, Origin=origin)
            assert (answer.status, origin_of(answer)) == (status if echoed else 403, echoed)
        for method, path in (("GET", "/track"), ("OPTIONS", "/track"), ("OPTIONS", "/nothing")):
            answer = configured.daemon.request(method, BASE + path, headers={"Origin": origin})
            assert origin_of(answer) == echoed
    assert origin_of(configured.daemon.post("/track", GOOD, configured.public)) is None


def test_configured_headers_may_be_sent_by_pages(configured: Configured) -> None:
    answer = configured.daemon.request("OPTIONS", f"{BASE}/track", headers={"Origin": ALLOWED[0]})
    allowed = {name.strip().lower() for name in answer.headers["access-control-allow-headers"].split(",")}
    assert allowed == {"authorization", "content-type", "x-shop-version", "traceparent"}


# The sum of all counts


def test_every_event_request_is_in_exactly_one_count(site: Site) -> None:
    cases = [case for case in CASES if case.endpoint != "identify"]
    good = [Case(200, "", "accepted", GOOD), Case(200, "", "accepted", GOOD, "customer-events", "server")]
    message = {**GOOD, "messageId": "of the sum"}
    good += [Case(200, "", "accepted", message), Case(200, "", "duplicate", message)]
    before = site.counts()
    for case in [*cases, *good]:
        assert site.send(case).status == case.status
    changed: dict[str, float] = {name: count - before.get(name, 0) for name, count in site.counts().items()}
    for endpoint in ("track", "customer-events"):
        sent = [case for case in [*cases, *good] if case.endpoint == endpoint]
        counted = {name: count for name, count in changed.items() if f'endpoint="{endpoint}"' in name}
        assert sum(counted.values()) == len(sent)
        for outcome in {case.outcome for case in sent}:
            wanted = sum(case.outcome == outcome for case in sent)
            assert sum(count for name, count in counted.items() if f'outcome="{outcome}"' in name) == wanted


def test_no_caller_can_choose_a_label(site: Site) -> None:
    for key in ("nobody's key", "Product  Viewed", "\n"):
        assert site.daemon.post("/track", {**GOOD, "key": key}, site.shop.public.id).status == 404
    for name in site.counts():
        if name.startswith("ingestd_events_total"):
            assert name.split('key="')[1].split('"')[0] in {"", *KEYS}
