"""Signatures of server keys: the signed bytes, and the validity of keys and secrets over time."""

from __future__ import annotations

import gzip
import json
import os
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.times import format_time, now
from tests.support.daemon import Daemon, Key, Reply, Shop, sign
from tests.support.processes import children, open_files, wait_for_end

# A change of keys takes effect in a running daemon within two seconds.
CHANGE = 2.0

EVENT: dict[str, Any] = {"key": "Page View", "anonymousId": "visitor", "data": {"title": "Pâtes"}}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("signature"))


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


def post(daemon: Daemon, key: Key, body: bytes, signature: str, **headers: str) -> Reply:
    return daemon.post("/customer-events", body, key.id, x_signature=signature, **headers)


def wait_for(status: int, send: Callable[[], Reply]) -> None:
    deadline = time.monotonic() + CHANGE
    while send().status != status:
        assert time.monotonic() < deadline, f"no {status} within {CHANGE} seconds"
        time.sleep(0.05)


# Each body as sent, and the output of Node.js's `JSON.stringify` for the object that was signed.
def with_data(data: str) -> str:
    return f'{{"key":"Page View","anonymousId":"visitor","data":{data}}}'


READINGS = {
    "compact": (with_data('{"a":1}'), with_data('{"a":1}')),
    "spaces": ('{"key": "Page View", "anonymousId": "visitor", "data": {"a": [1, 2]}}', with_data('{"a":[1,2]}')),
    "pretty": (
        '{\n  "key": "Page View",\n  "anonymousId": "visitor",\n  "data": {\n    "a": [],\n    "b": {}\n  }\n}\n',
        with_data('{"a":[],"b":{}}'),
    ),
    "tabs and CRLF": (
        '\r\n{\r\n\t"key":\t"Page View",\r\n\t"anonymousId":"visitor" ,\r\n\t"data":{ "a" : null }\r\n}\r\n',
        with_data('{"a":null}'),
    ),
    "1e21": (with_data('{"n":1e21}'), with_data('{"n":1e+21}')),
    "1e21 in digits": (with_data('{"n":1000000000000000000000}'), with_data('{"n":1e+21}')),
    "1e20": (with_data('{"n":1E20}'), with_data('{"n":100000000000000000000}')),
    "1e-7": (with_data('{"n":0.0000001}'), with_data('{"n":1e-7}')),
    "1e-6": (with_data('{"n":1e-6}'), with_data('{"n":0.000001}')),
    "-0": (with_data('{"n":[-0,-0.0,0.0]}'), with_data('{"n":[0,0,0]}')),
    "a price": (with_data('{"price":4.350}'), with_data('{"price":4.35}')),
    "a whole price": (with_data('{"price":40.00}'), with_data('{"price":40}')),
    "2^53+1": (with_data('{"n":9007199254740993}'), with_data('{"n":9007199254740992}')),
    "a long number": (with_data('{"n":12345678901234567890123}'), with_data('{"n":1.2345678901234568e+22}')),
    "integer-like keys": (
        with_data('{"b":1,"10":2,"9":3,"01":4,"a":5,"4294967295":6,"-1":7}'),
        with_data('{"9":3,"10":2,"b":1,"01":4,"a":5,"4294967295":6,"-1":7}'),
    ),
    "a key twice": (with_data('{"a":1,"b":2,"a":3}'), with_data('{"a":3,"b":2}')),
    "escapes": (
        with_data(r'{"\u0061":"\u00e9\ud83d\ude00\/\u2028\u0022\u005c"}'),
        with_data('{"a":"é😀/\u2028\\"\\\\"}'),
    ),
    "control characters": (
        with_data(r'{"a":"\u0000\u0008\u0009\u000A\u001F\u007f"}'),
        with_data('{"a":"\\u0000\\b\\t\\n\\u001f\x7f"}'),
    ),
}


@pytest.mark.parametrize(("sent", "signed"), READINGS.values(), ids=READINGS)
def test_the_body_as_sent_or_its_ecmascript_form_may_be_signed(
    shop: Shop, daemon: Daemon, sent: str, signed: str
) -> None:
    for text in (sent, signed):
        signature = sign(shop.server.secret, text.encode())
        assert post(daemon, shop.server, sent.encode(), signature).status == 200
    assert post(daemon, shop.server, sent.encode(), sign("another secret", signed.encode())).status == 401


def test_no_other_serialisation_may_be_signed(shop: Shop, daemon: Daemon) -> None:
    sent = json.dumps({**EVENT, "data": {"price": 4.5, "title": "Pâtes"}}, separators=(",", ":")).encode()
    value = json.loads(sent)
    others = [
        json.dumps(value),
        json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
        json.dumps(value, indent=2, ensure_ascii=False),
        json.dumps(value["data"], separators=(",", ":")),
        sent.decode() + "\n",
        "",
    ]
    for other in others:
        answer = post(daemon, shop.server, sent, sign(shop.server.secret, other.encode()))
        assert (answer.status, answer.json()["code"]) == (401, "invalid_signature")


def test_a_changed_body_is_refused(shop: Shop, daemon: Daemon) -> None:
    signed = json.dumps({**EVENT, "data": {"total": 10}}).encode()
    for changed in (signed.replace(b"10", b"11"), signed.replace(b"total", b"Total"), signed[:-1] + b',"a":1}'):
        assert post(daemon, shop.server, changed, sign(shop.server.secret, signed)).status == 401


STORED = {
    "2^53+1": (with_data('{"n":9007199254740993}'), with_data('{"n":9007199254740992}')),
    "-0": (with_data('{"n":[-0,-0.0]}'), with_data('{"n":[0,0]}')),
    "1e400": (with_data('{"n":1e400,"b":1}'), with_data('{"n":null,"b":1}')),
    "a key twice": (with_data('{"a":1,"a":{"c":3}}'), with_data('{"a":{"c":3}}')),
}


@pytest.mark.parametrize("path", ["/customer-events", "/customer-events/batch"])
def test_the_signed_values_are_stored(shop: Shop, daemon: Daemon, path: str) -> None:
    whole = '{"events":[%s]}' if path.endswith("batch") else "%s"
    for number, pair in enumerate(STORED.values()):
        visitor = f"{path} {number}"
        sent, signed = [whole % text.replace("visitor", visitor) for text in pair]
        answer = daemon.post(path, sent.encode(), shop.server.id, x_signature=sign(shop.server.secret, signed.encode()))
        assert answer.status == 200
        event = json.loads(signed)["events"][0] if path.endswith("batch") else json.loads(signed)
        [record] = [record for record in shop.exported() if record["anonymousId"] == visitor]
        assert repr(record["data"]) == repr(event["data"])  # 0 and -0 are equal


def test_a_body_that_was_signed_as_sent_is_stored_as_sent(shop: Shop, daemon: Daemon) -> None:
    sent = with_data('{"n":[9007199254740993,-0.0]}').replace("visitor", "exact").encode()
    assert post(daemon, shop.server, sent, sign(shop.server.secret, sent)).status == 200
    [record] = [record for record in shop.exported() if record["anonymousId"] == "exact"]
    assert repr(record["data"]) == repr({"n": [9007199254740993, -0.0]})


def test_a_gzip_body_is_signed_over_its_content(shop: Shop, daemon: Daemon) -> None:
    raw = json.dumps(EVENT, indent=2).encode()
    rewritten = json.dumps(EVENT, separators=(",", ":"), ensure_ascii=False).encode()
    packed = gzip.compress(raw)
    for signed, status in ((raw, 200), (rewritten, 200), (packed, 401)):
        signature = sign(shop.server.secret, signed)
        assert post(daemon, shop.server, packed, signature, Content_Encoding="gzip").status == status


def test_a_body_over_64_kilobytes_is_signed_as_sent(shop: Shop, daemon: Daemon) -> None:
    for size, status in ((65_000, 200), (66_000, 401)):
        value = {**EVENT, "data": {"title": "x" * (size - 100)}}
        raw, rewritten = json.dumps(value).encode(), json.dumps(value, separators=(",", ":")).encode()
        assert post(daemon, shop.server, raw, sign(shop.server.secret, raw)).status == 200
        assert post(daemon, shop.server, raw, sign(shop.server.secret, rewritten)).status == status


def test_a_large_batch_is_signed_as_sent_or_before_it_is_compressed(shop: Shop, daemon: Daemon) -> None:
    raw = json.dumps({"events": [{**EVENT, "data": {"title": "x" * 3000}}] * 1000}).encode()
    signature = sign(shop.server.secret, raw)
    path = "/customer-events/batch"
    packed = gzip.compress(raw)
    for body, headers in ((raw, {}), (packed, {"content_encoding": "gzip"})):
        answer = daemon.post(path, body, shop.server.id, x_signature=signature, **headers)
        assert [result["status"] for result in answer.json()["results"]] == [200] * 1000
        assert daemon.post(path, body, shop.server.id, x_signature="0" * 64, **headers).status == 401


def test_a_small_body_may_take_many_bytes_to_send(shop: Shop, daemon: Daemon) -> None:
    for size in (10, 10_000):
        raw = json.dumps({**EVENT, "data": {"title": "x" * size}}).encode()
        compressor = zlib.compressobj(wbits=-15)
        # A gzip member of 60,000 empty blocks and one block with the whole content (RFC 1951, 3.2.4).
        blocks = b"\0\0\0\xff\xff" * 60_000 + compressor.compress(raw) + compressor.flush()
        packed = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + blocks + struct.pack("<II", zlib.crc32(raw), len(raw))
        assert gzip.decompress(packed) == raw
        canonical = json.dumps(json.loads(raw), separators=(",", ":"), ensure_ascii=False).encode()
        for signed, status in ((raw, 200), (canonical, 200), (b"another", 401)):
            signature = sign(shop.server.secret, signed)
            assert post(daemon, shop.server, packed, signature, Content_Encoding="gzip").status == status


def test_the_process_for_canonical_forms_ends_with_the_daemon(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    raw = json.dumps({**EVENT, "data": {"title": "x" * 10_000}}).encode()
    signature = sign(shop.server.secret, json.dumps(json.loads(raw), separators=(",", ":")).encode())
    for number in signal.SIGKILL, signal.SIGINT:
        # A session as in a terminal: Ctrl-C goes to every process of the foreground group.
        with Daemon(shop.config, prefix=("setsid",)) as daemon:
            assert post(daemon, shop.server, json.dumps(EVENT).encode(), "0" * 64).status == 401
            assert not children(daemon.pid)
            assert post(daemon, shop.server, raw, signature).status == 200
            [pid] = children(daemon.pid)
            assert {*open_files(pid)} == {0, 1, 2}
            if number is signal.SIGKILL:
                daemon.kill()
            else:
                os.killpg(daemon.pid, number)
                assert daemon.wait() == 0
                assert not [line for line in daemon.log if "Traceback" in line or "KeyboardInterrupt" in line]
        assert wait_for_end(pid)


def test_case_does_not_matter_in_signature_and_key(shop: Shop, daemon: Daemon) -> None:
    raw = json.dumps(EVENT).encode()
    signature = sign(shop.server.secret, raw)
    mixed = signature[:32].upper() + signature[32:]
    for given in (signature.upper(), mixed):
        assert post(daemon, shop.server, raw, given).status == 200
    assert post(daemon, Key(shop.server.id.upper()), raw, signature).status == 200
    named = {"authorization": f"bEARER {shop.server.id}", "X-SIGNATURE": signature}
    assert daemon.request("POST", "/api/v1/analytics/customer-events", raw, named).status == 200


def test_a_signature_is_valid_for_one_key_only(shop: Shop, daemon: Daemon) -> None:
    second = shop.create_key("server", shop.tenant)
    raw = json.dumps(EVENT).encode()
    wait_for(200, lambda: daemon.post_signed(EVENT, second))
    assert post(daemon, second, raw, sign(shop.server.secret, raw)).status == 401
    assert post(daemon, shop.server, raw, sign(second.secret, raw)).status == 401
    # The id of a key is public, so it is not a valid secret. Nor is the empty text.
    for secret in (second.id, ""):
        assert post(daemon, second, raw, sign(secret, raw)).status == 401


def rotated(shop: Shop, key: Key, grace: str) -> Key:
    printed = json.loads(shop.command("keys", "rotate", key.id, "--grace", grace, "--json"))
    assert printed["id"] == key.id
    return Key(printed["id"], printed["secret"])


def test_an_old_secret_is_valid_for_the_grace_time_of_a_rotation(shop: Shop, daemon: Daemon) -> None:
    first = shop.create_key("server", shop.tenant)
    second = rotated(shop, first, "1h")
    assert second.secret != first.secret
    wait_for(200, lambda: daemon.post_signed(EVENT, second))
    assert daemon.post_signed(EVENT, first).status == 200
    # Only the previous secret stays valid: a second rotation ends the first secret.
    third = rotated(shop, second, "1ms")
    wait_for(200, lambda: daemon.post_signed(EVENT, third))
    assert daemon.post_signed(EVENT, first).status == 401
    assert daemon.post_signed(EVENT, second).status == 401


def test_a_revoked_key_is_refused(shop: Shop, daemon: Daemon) -> None:
    server, public = shop.create_key("server", shop.tenant), shop.create_key("public", shop.tenant)
    wait_for(200, lambda: daemon.post_signed(EVENT, server))
    wait_for(200, lambda: daemon.post("/track", EVENT, public.id))
    rotated(shop, server, "1h")
    for key in (server, public):
        shop.command("keys", "revoke", key.id)
    wait_for(401, lambda: daemon.post_signed(EVENT, server))
    wait_for(401, lambda: daemon.post("/track", EVENT, public.id))


def test_no_key_or_secret_is_logged_or_shown(shop: Shop, daemon: Daemon) -> None:
    raw = json.dumps(EVENT).encode()
    signature = sign(shop.server.secret, raw)
    assert post(daemon, shop.server, raw, signature).status == 200
    assert post(daemon, shop.server, raw, "0" * 64).status == 401
    assert daemon.post("/track", EVENT, shop.public.id).status == 200
    assert daemon.post("/track", EVENT, shop.server.id).status == 401
    daemon.read_log()
    shown = "\n".join([*daemon.log, daemon.ops("/metrics").body.decode(), shop.command("events", "export")])
    for hidden in (shop.server.secret, shop.public.id, shop.server.id, signature):
        assert hidden not in shown
    assert shop.server.secret not in shop.command("keys", "list", "--json")


EACH = {"anonymousId": "visitor", "userId": "u"}
IDENTIFY = {**EACH, "traits": {"email": "a@b.example"}}


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        ({**EACH, "key": "Page View", "data": {}}, ["/customer-events"]),
        ({**EACH, "key": "Page View", "data": {}, "traits": {}, "events": [EVENT]}, ["/customer-events"]),
        ({**EACH, "key": None}, []),
        (IDENTIFY, ["/identify"]),
        (EACH, ["/identify"]),
        ({**IDENTIFY, "type": "identify", "events": [EVENT]}, ["/identify"]),
        (
            {"events": [EVENT, {**IDENTIFY, "type": "identify"}], "traits": {}, "key": "Page View"},
            ["/customer-events/batch"],
        ),
    ],
)
def test_a_signed_body_is_valid_on_one_path(daemon: Daemon, shop: Shop, body: Any, taken: list[str]) -> None:
    raw = json.dumps(body).encode()
    signature = sign(shop.server.secret, raw)
    for path in ("/customer-events", "/identify", "/customer-events/batch"):
        answer = daemon.post(path, raw, shop.server.id, x_signature=signature)
        assert answer.status == (200 if path in taken else 400), (path, answer.body)
        if path not in taken:
            assert answer.json()["errors"][0]["pointer"]


def test_an_identify_request_of_a_signed_batch_has_no_key(daemon: Daemon, shop: Shop) -> None:
    raw = json.dumps({"events": [{**IDENTIFY, "type": "identify", "key": "Page View", "data": {}}]}).encode()
    answer = daemon.post("/customer-events/batch", raw, shop.server.id, x_signature=sign(shop.server.secret, raw))
    (result,) = answer.json()["results"]
    assert (result["status"], result["errors"][0]["pointer"]) == (400, "/key")


def test_replays_are_refused_if_configured(tmp_path: Path) -> None:
    rules = 'max_age = "1h"\nrequire_message_id = true'
    shop = Shop(tmp_path, {"plugins.hmac_auth": rules})
    fresh = {**EVENT, "messageId": "m-1", "timestamp": format_time(now() - 60_000)}
    old = {**fresh, "messageId": "m-2", "timestamp": format_time(now() - 3_700_000)}
    unnamed = {name: value for name, value in fresh.items() if name != "messageId"}
    with shop.serve() as daemon:
        first, second = daemon.post_signed(fresh, shop.server), daemon.post_signed(fresh, shop.server)
        assert (first.status, second.status) == (200, 200)
        assert first.json() == second.json()
        for body, code, pointer in (
            (old, "stale_timestamp", "/timestamp"),
            (unnamed, "invalid_envelope", "/messageId"),
        ):
            answer = daemon.post_signed(body, shop.server)
            assert (answer.status, answer.json()["code"]) == (400, code)
            assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
        # Faults of the schema are reported first, and the rules do not apply to public keys.
        assert daemon.post_signed({**old, "data": 1}, shop.server).json()["code"] == "invalid_envelope"
        assert daemon.post("/track", old, shop.public.id).status == 200

        identify = {"type": "identify", "anonymousId": "visitor", "userId": "u", "messageId": "m-3"}
        events = [{**fresh, "messageId": "m-4"}, old, unnamed, identify]
        raw = json.dumps({"events": events}).encode()
        signature = sign(shop.server.secret, raw)
        answer = daemon.post("/customer-events/batch", raw, shop.server.id, x_signature=signature)
        results = answer.json()["results"]
        assert [result["status"] for result in results] == [200, 400, 400, 400]
        assert [result["errors"][0]["pointer"] for result in results[1:]] == ["/timestamp", "/messageId", "/timestamp"]
    assert [record["messageId"] for record in shop.stored()] == ["m-1", "m-2", "m-4"]
