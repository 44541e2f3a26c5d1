from __future__ import annotations

import hashlib
import hmac
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from ingestd.errors import Unauthorized
from ingestd.events import Endpoint, Principal, Request
from ingestd.plugins.hmac_auth import HmacPlugin, is_signed
from ingestd.plugins.key_registry import Key, change_keys
from ingestd.times import now
from tests.support.backends import PluginDaemon, sqlite_daemon

ROOT = Path(__file__).parents[2]
VECTORS = ROOT.parent / "shared" / "vectors"

NOW = now()
ID = "0f2d9c1e-6f0b-4e7a-9c39-0a5d1f7e8b21"
SECRET = "geheim-ключ"
KEY = Key(id=ID, kind="server", tenant="shop", secret=SECRET, grants={"CRM": ("ADMIN",), "ERP": ()}, created_at=NOW)
WHO = Principal("shop", ID, {"CRM": frozenset({"ADMIN"}), "ERP": frozenset()})
BODY = '{"key": "Order Completed", "data": {"total": 40.50, "7": "ü"}}'.encode()
REWRITTEN = '{"key":"Order Completed","data":{"7":"ü","total":40.5}}'.encode()


def sign(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def request(
    body: bytes,
    signature: str | None,
    *,
    credential: str | None = ID,
    endpoint: Endpoint = Endpoint.CUSTOMER_EVENTS,
    at: int = NOW,
) -> Request:
    headers = HTTPHeaders()
    if credential is not None:
        headers["Authorization"] = f"Bearer {credential}"
    if signature is not None:
        headers["X-Signature"] = signature
    return Request(endpoint, headers, lambda: body, received_at=at)


async def started(daemon: PluginDaemon, *keys: Key) -> HmacPlugin:
    await change_keys(daemon.store, lambda _: keys)
    plugin = HmacPlugin()
    await plugin.startup(daemon)
    return plugin


async def test_the_signature_may_be_of_the_bytes_or_of_what_ecmascript_makes_of_them(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        for signed in BODY, REWRITTEN:
            for signature in sign(signed), sign(signed).upper(), f" {sign(signed)} ":
                assert plugin.authenticate(request(BODY, signature)) == WHO
        assert plugin.authenticate(request(BODY, sign(BODY), credential=ID.upper())) == WHO


@pytest.mark.parametrize(
    "signature",
    [
        None,
        "",
        sign(BODY, "another secret"),
        sign(BODY + b" "),
        sign(BODY)[:-1],
        sign(BODY) + "0",
        sign(BODY)[:-1] + "g",
        f"sha256={sign(BODY)}",
        f"{sign(BODY)[:32]} {sign(BODY)[32:]}",
        f"{sign(BODY)},{sign(BODY)}",
        "0" * 64,
        "é" * 64,
        "٣" * 64,
    ],
)
async def test_any_other_signature_is_refused_with_a_reason_that_does_not_repeat_it(
    tmp_path: Path, signature: str | None
) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        with pytest.raises(Unauthorized, match="x-signature") as refused:
            plugin.authenticate(request(BODY, signature))
        assert refused.value.code == "invalid_signature"
        assert not signature or signature not in refused.value.detail
        assert sign(BODY) not in refused.value.detail


async def test_any_other_credential_is_left_to_other_plugins(tmp_path: Path) -> None:
    public = Key(id="pk_public-public-public", kind="public", tenant="shop", created_at=NOW)
    revoked = Key(
        id=ID.replace("0f", "1f"), kind="server", tenant="shop", secret=SECRET, created_at=NOW, revoked_at=NOW
    )
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY, public, revoked)
        for credential in [None, "", public.id, revoked.id, ID.replace("0f", "2f"), ID.replace("-", ""), SECRET]:
            assert plugin.authenticate(request(BODY, sign(BODY), credential=credential)) is None


@pytest.mark.parametrize("endpoint", [Endpoint.TRACK, Endpoint.IDENTIFY])
async def test_a_server_key_is_nothing_on_the_public_endpoints(tmp_path: Path, endpoint: Endpoint) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        assert plugin.authenticate(request(BODY, sign(BODY), endpoint=endpoint)) is None


async def test_after_a_rotation_both_secrets_are_valid_until_the_grace_time_is_over(tmp_path: Path) -> None:
    rotated = Key(
        id=ID,
        kind="server",
        tenant="shop",
        secret="new",
        previous_secret=SECRET,
        previous_until=NOW + 1000,
        grants=KEY.grants,
        created_at=NOW,
    )
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, rotated)
        for signed in BODY, REWRITTEN:
            assert plugin.authenticate(request(BODY, sign(signed, "new"), at=NOW + 5000)) == WHO
            assert plugin.authenticate(request(BODY, sign(signed), at=NOW + 999)) == WHO
            with pytest.raises(Unauthorized):
                plugin.authenticate(request(BODY, sign(signed), at=NOW + 1000))


@pytest.mark.parametrize(("size", "rewritten_counts"), [(256_000, True), (256_001, False)])
def test_large_bodies_must_be_signed_as_they_are_sent(size: int, *, rewritten_counts: bool) -> None:
    rewritten = b'{"a":"%s"}' % (b"x" * (size - 9))
    body = rewritten.replace(b":", b": ")
    assert len(body) == size
    secrets = [SECRET.encode()]
    assert is_signed(body, sign(body), secrets)
    assert is_signed(body, sign(rewritten), secrets) == rewritten_counts


def test_a_body_that_is_not_json_can_be_signed_only_as_it_is() -> None:
    for body in b"", b"not json", b"\xff", b"[" * 200_000:
        assert is_signed(body, sign(body), [SECRET.encode()])
        assert not is_signed(body, sign(b"null"), [SECRET.encode()])


@given(st.binary(max_size=80), st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()))
def test_a_signature_is_good_for_its_secret_only(body: bytes, secret: str) -> None:
    signature = sign(body, secret)
    assert is_signed(body, signature, [secret.encode()])
    assert is_signed(body, signature, [b"other", secret.encode()])
    assert not is_signed(body, signature, [secret.encode() + b"x"])
    assert not is_signed(body, signature, [])


# Published vectors


def _vectors(name: str) -> Any:
    path = VECTORS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _rfc4231() -> list[tuple[str, str, str]]:
    return [(v["key_hex"], v["data_hex"], v["sha256"]) for v in _vectors("rfc4231_sha256.json") or []]


def _wycheproof() -> list[Any]:
    groups = (_vectors("hmac_sha256_test.json") or {"testGroups": []})["testGroups"]
    return [pytest.param(t, g["tagSize"], id=str(t["tcId"])) for g in groups for t in g["tests"]]


@pytest.mark.parametrize(("key", "data", "tag"), _rfc4231())
def test_rfc_4231(key: str, data: str, tag: str) -> None:
    # The one vector for truncated output has 128 bits of it: a signature is never truncated.
    assert is_signed(bytes.fromhex(data), tag, [bytes.fromhex(key)]) == (len(tag) == 64)


@pytest.mark.parametrize(("vector", "bits"), _wycheproof())
def test_wycheproof(vector: Mapping[str, Any], bits: int) -> None:
    valid = vector["result"] == "valid" and bits == 256
    assert is_signed(bytes.fromhex(vector["msg"]), vector["tag"], [bytes.fromhex(vector["key"])]) == valid


# What the documentation tells callers to do


def _script(language: str, before: str, after: str) -> str:
    """The example of that language, between what gives it an event and a secret, and what prints its result."""
    text = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    block = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return f"{before}\n{block[1]}\n{after}\n"


def _python() -> list[str]:
    before = f"event = {{'total': 40.0, 'name': 'Größe ü/😀'}}; secret = '{SECRET}'"
    after = "import sys; sys.stdout.buffer.write(signature.encode() + b'\\n' + body)"
    return ["python3", "-c", _script("python", before, after)]


def _node() -> list[str]:
    before = f"const event = {{total: 40.0, name: 'Größe ü/😀'}}, secret = '{SECRET}';"
    return ["node", "-e", _script("js", before, "process.stdout.write(signature + '\\n' + body);")]


def _php() -> list[str]:
    before = f"$event = ['total' => 40.0, 'name' => 'Größe ü/😀']; $secret = '{SECRET}';"
    return ["php", "-r", _script("php", before, "echo $signature, PHP_EOL, $body;")]


def _shell() -> list[str]:
    before = f"""BODY='{{"total": 40.0, "name": "Größe ü/😀"}}'; SECRET='{SECRET}'"""
    return ["sh", "-c", _script("sh", before, """printf '%s\\n%s' "$SIGNATURE" "$BODY\"""")]


@pytest.mark.parametrize(
    ("command", "needs"), [(_python, ["python3"]), (_node, ["node"]), (_php, ["php"]), (_shell, ["sh", "openssl"])]
)
def test_the_documented_way_to_sign_works(command: Callable[[], list[str]], needs: Sequence[str]) -> None:
    missing = [program for program in needs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not on PATH: its example in docs/keys.md cannot run")
    done = subprocess.run(command(), check=True, capture_output=True)
    signature, _, body = done.stdout.partition(b"\n")
    assert json.loads(body) == {"total": 40, "name": "Größe ü/😀"}
    assert is_signed(body, signature.decode(), [SECRET.encode()])
