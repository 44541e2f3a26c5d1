from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tornado.httputil import HTTPHeaders

from ingestd.api.errors import Refused, TooLarge, Unauthorized
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.api.times import now
from ingestd.http.body import decode_body
from ingestd.plugins.auth.hmac_auth import HmacPlugin, is_signed
from ingestd.plugins.auth.key_registry import Key, change_keys
from tests.support.backends import PluginDaemon, sqlite_daemon
from tests.support.processes import own_children

ROOT = Path(__file__).parents[3]
VECTORS = ROOT.parent / "shared" / "vectors"

NOW = now()
ID = "0f2d9c1e-6f0b-4e7a-9c39-0a5d1f7e8b21"
SECRET = "geheim-ключ"
KEY = Key(id=ID, kind="server", tenant="shop", secret=SECRET, grants={"CRM": ("ADMIN",), "ERP": ()}, created_at=NOW)
WHO = Principal("shop", ID, {"CRM": frozenset({"ADMIN"}), "ERP": frozenset()}, signed=True)
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
    batch: bool = False,
    encoding: str = "",
    peer: str = "203.0.113.7",
) -> Request:
    headers = HTTPHeaders()
    if credential is not None:
        headers["Authorization"] = f"Bearer {credential}"
    if signature is not None:
        headers["X-Signature"] = signature
    if encoding:
        headers["Content-Encoding"] = encoding
    return Request(endpoint, headers, Sent(body, encoding), received_at=at, batch=batch, peer=peer)


class Sent:
    """A body as it was sent."""

    def __init__(self, body: bytes, encoding: str) -> None:
        self.body = body
        self.encoding = encoding
        self.size = len(body)

    def decode(self, most: int | None = None) -> bytes:
        return decode_body(self.body, self.encoding, 4 * 2**20 if most is None else most)

    def free(self, content: bytes) -> None:
        """Keeps the body: a test may read it again."""


async def started(daemon: PluginDaemon, *keys: Key) -> HmacPlugin:
    await change_keys(daemon.store, lambda _: keys)
    plugin = HmacPlugin(HmacPlugin.Options())
    await plugin.startup(daemon)
    daemon.watch(shut_down_at_the_end(plugin), name="shutdown")
    return plugin


async def shut_down_at_the_end(plugin: HmacPlugin) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await plugin.shutdown()


async def ask(plugin: HmacPlugin, request: Request) -> Principal | None:
    """The principal of the request. Calls the plugin like the daemon."""
    answer = plugin.authenticate(request)
    return await answer if inspect.isawaitable(answer) else answer


async def status(plugin: HmacPlugin, request: Request) -> int:
    try:
        principal = await ask(plugin, request)
    except Refused as refused:
        return refused.status
    assert principal == WHO
    return 200


async def test_the_signature_may_be_of_the_bytes_or_of_the_ecmascript_form(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        for signed in BODY, REWRITTEN:
            for signature in sign(signed), sign(signed).upper(), f" {sign(signed)} ":
                assert await ask(plugin, request(BODY, signature)) == WHO
        assert await ask(plugin, request(BODY, sign(BODY), credential=ID.upper())) == WHO


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
            await ask(plugin, request(BODY, signature))
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
            assert await ask(plugin, request(BODY, sign(BODY), credential=credential)) is None


@pytest.mark.parametrize("endpoint", [Endpoint.TRACK, Endpoint.IDENTIFY])
async def test_a_server_key_is_unknown_on_the_public_endpoints(tmp_path: Path, endpoint: Endpoint) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        assert await ask(plugin, request(BODY, sign(BODY), endpoint=endpoint)) is None


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
            assert await ask(plugin, request(BODY, sign(signed, "new"), at=NOW + 5000)) == WHO
            assert await ask(plugin, request(BODY, sign(signed), at=NOW + 999)) == WHO
            with pytest.raises(Unauthorized):
                await ask(plugin, request(BODY, sign(signed), at=NOW + 1000))


@pytest.mark.parametrize(("size", "expected"), [(65_536, 200), (65_537, 401)])
async def test_large_bodies_must_be_signed_as_they_are_sent(tmp_path: Path, size: int, expected: int) -> None:
    rewritten = b'{"a":"%s"}' % (b"x" * (size - 9))
    body = rewritten.replace(b":", b": ")
    assert len(body) == size
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        assert await status(plugin, request(body, sign(body))) == 200
        assert await status(plugin, request(body, sign(rewritten))) == expected
        with pytest.raises(Unauthorized, match="64 KiB"):
            await ask(plugin, request(b"x" * 65_537, sign(b"")))


async def test_a_body_that_is_not_json_must_be_signed_as_sent(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        for body in b"", b"not json", b"\xff", b"[" * 60_000:
            assert await status(plugin, request(body, sign(body))) == 200
            assert await status(plugin, request(body, sign(b"null"), peer=f"203.0.113.{len(body) % 200}")) == 401


async def test_the_signed_form_of_the_body_is_read(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        for signed, batch in (BODY, False), (REWRITTEN, False), (BODY, True), (REWRITTEN, True):
            asked = request(BODY, sign(signed), batch=batch)
            assert await ask(plugin, asked) == WHO
            assert asked.body == signed


@pytest.mark.parametrize("size", [1_000, 60_000, 300_000, 4_000_000])
async def test_a_compressed_batch_is_signed_over_its_content(tmp_path: Path, size: int) -> None:
    rewritten = b'{"events":["%s"]}' % (b"x" * size)
    body = rewritten.replace(b":", b": ")
    packed = gzip.compress(body)
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        asked = [
            request(packed, sign(signed), batch=True, encoding="gzip", peer=f"203.0.113.{number}")
            for number, signed in enumerate([body, rewritten, packed])
        ]
        second_reading = 200 if len(body) <= 65_536 else 401
        assert [await status(plugin, each) for each in asked] == [200, second_reading, 401]


async def test_a_body_that_cannot_be_decoded_is_refused_and_counts_as_a_failure(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(5_000_000))
    broken = gzip.compress(bytes(100))[:-4]
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        with pytest.raises(TooLarge):
            await ask(plugin, request(bomb, sign(b""), batch=True, encoding="gzip"))
        statuses = [await status(plugin, request(bomb, sign(b""), batch=True, encoding="gzip")) for _ in range(20)]
        assert {*statuses} == {413, 429}
        assert await status(plugin, request(broken, sign(b""), batch=True, encoding="gzip", peer="203.0.113.8")) == 400


def hostile(number: int = 0) -> bytes:
    """A body whose canonical form takes long to compute; 64 KiB at most."""
    return b"[" + b"0," * 32_000 + b"%d]" % number


async def test_simultaneous_failures_do_not_exceed_the_budget(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        asked = [request(hostile(number), sign(b"")) for number in range(20)]
        statuses = await asyncio.gather(*[status(plugin, each) for each in asked])
        assert 1 <= statuses.count(401) <= 3
        assert statuses.count(401) + statuses.count(429) == 20
        # Signatures of the sent bytes need no budget.
        assert await status(plugin, request(BODY, sign(BODY))) == 200


async def test_strangers_cannot_lock_out_clients_of_another_form(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        backend = "198.51.100.1"
        assert await status(plugin, request(BODY, sign(REWRITTEN), peer=backend)) == 200
        # One address uses up its own budget. A new backend still has enough.
        for number in range(3):
            await status(plugin, request(hostile(number), sign(b"")))
        assert await status(plugin, request(hostile(), sign(b""))) == 429
        assert await status(plugin, request(BODY, sign(REWRITTEN), peer="198.51.100.2")) == 200
        # Many addresses use up the strangers' budget of this key, but not the budget of its backends.
        flood = [f"192.0.2.{number}" for number in range(12)]
        assert 429 in [await status(plugin, request(hostile(), sign(b""), peer=peer)) for peer in flood]
        for known in backend, "198.51.100.2":
            for _ in range(100):
                assert await status(plugin, request(BODY, sign(REWRITTEN), peer=known)) == 200


async def test_a_client_of_the_canonical_form_is_not_slowed_by_strangers(tmp_path: Path) -> None:
    """Large bodies wait for their turns during a flood. Bodies of usual size never wait, in either form."""
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        strangers = [
            asyncio.create_task(status(plugin, request(hostile(number), sign(b""), peer=f"192.0.2.{number}")))
            for number in range(60)
        ]
        await asyncio.sleep(0)
        assert not any(each.done() for each in strangers)
        for signed in (BODY, REWRITTEN) * 3:
            answer = plugin.authenticate(request(BODY, sign(signed), peer="198.51.100.1"))
            if inspect.isawaitable(answer):
                with pytest.raises(StopIteration) as ended:
                    answer.__await__().send(None)
                answer = ended.value.value
            assert answer == WHO
        assert not any(each.done() for each in strangers)
        # A large body of this client gets its turn, and has a separate budget.
        large = b'{"a": "%s"}' % (b"x" * 5000)
        canonical = large.replace(b": ", b":")
        assert await status(plugin, request(large, sign(canonical), peer="198.51.100.1")) == 200
        answers = await asyncio.gather(*strangers)
        assert answers.count(401) + answers.count(429) == 60


async def test_the_event_loop_runs_while_a_body_is_rewritten_or_decoded(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        packed = gzip.compress(bytes(4_000_000))
        for asked in request(hostile(), sign(b"")), request(packed, sign(b""), batch=True, encoding="gzip", peer="::1"):
            work = asyncio.ensure_future(status(plugin, asked))
            turns = 0
            while not work.done():
                await asyncio.sleep(0)
                turns += 1
            assert work.result() == 401
            assert turns > 5


async def test_a_changed_key_takes_effect_after_a_refresh(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = await started(daemon, KEY)
        assert await ask(plugin, request(BODY, sign(BODY))) == WHO
        await change_keys(daemon.store, lambda _: [replace(KEY, grants={"ERP": ("READ",)})])
        await plugin.refresh(daemon.store)
        principal = await ask(plugin, request(BODY, sign(BODY)))
        assert principal is not None
        assert principal.grants == {"ERP": frozenset({"READ"})}


async def test_a_reload_keeps_keys_and_budgets(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        before = await started(daemon, KEY)
        assert [await status(before, request(hostile(), sign(b""))) for _ in range(3)][-1] == 429
        after = HmacPlugin(HmacPlugin.Options(require_message_id=True))
        after.take_over(before)
        assert await status(after, request(BODY, sign(BODY))) == 200
        assert await status(after, request(hostile(), sign(b""))) == 429
        # Both plugins share one process. The shutdown of the present plugin ends it.
        large = b'{"a": "%s"}' % (b"x" * 5000)
        signature = sign(large.replace(b": ", b":"))
        for plugin, peer in (before, "203.0.113.8"), (after, "203.0.113.9"):
            assert await status(plugin, request(large, signature, peer=peer)) == 200
        assert len(own_children()) == 1
        await after.shutdown()
        assert not own_children()


@given(st.binary(max_size=80), st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()))
def test_a_signature_is_valid_for_its_secret_only(body: bytes, secret: str) -> None:
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
def test_the_vectors_of_rfc_4231_are_valid_unless_truncated(key: str, data: str, tag: str) -> None:
    # One vector has an output truncated to 128 bits. A truncated signature is invalid.
    assert is_signed(bytes.fromhex(data), tag, [bytes.fromhex(key)]) == (len(tag) == 64)


@pytest.mark.parametrize(("vector", "bits"), _wycheproof())
def test_the_vectors_of_wycheproof_are_judged_as_published(vector: Mapping[str, Any], bits: int) -> None:
    valid = vector["result"] == "valid" and bits == 256
    assert is_signed(bytes.fromhex(vector["msg"]), vector["tag"], [bytes.fromhex(vector["key"])]) == valid


# The examples in the documentation


def _script(language: str, before: str, after: str) -> str:
    """The example in this language. `before` defines an event and a secret, `after` prints the result."""
    text = (ROOT / "docs" / "signing.md").read_text(encoding="utf-8")
    block = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert block is not None
    return f"{before}\n{block[1]}\n{after}\n"


_EVENT = {
    "total": 40.0, "small": 0.1, "tiny": 1e-7, "name": "Größe ü/😀 <&> \u2028", "data": {}, "none": None, "list": [],
    "text": "x" * 1_000_000,
}  # fmt: skip
_GO = ("crypto/hmac", "crypto/sha256", "encoding/hex", "encoding/json", "fmt", "os")
_JAVA = (
    "import java.nio.charset.StandardCharsets; import java.nio.file.*; import java.util.HexFormat;"
    "import javax.crypto.Mac; import javax.crypto.spec.SecretKeySpec;\n"
    "class Sign { public static void main(String[] none) throws Exception {"
)
_SIGNERS = {
    "python": (
        ["python3"],
        f"import json; event = json.load(open('event.json', encoding='utf-8')); secret = '{SECRET}'",
        "import sys; sys.stdout.buffer.write(signature.encode() + b'\\n' + body)",
    ),
    "js": (
        ["node"],
        f"const event = JSON.parse(require('fs').readFileSync('event.json')), secret = '{SECRET}';",
        "process.stdout.write(signature + '\\n' + body);",
    ),
    "php": (
        ["php"],
        f"<?php $event = json_decode(file_get_contents('event.json')); $secret = '{SECRET}';",
        "echo $signature, PHP_EOL, $body;",
    ),
    "ruby": (
        ["ruby", "-Eutf-8"],
        f"require 'json'; event = JSON.parse(File.read('event.json')); secret = '{SECRET}'",
        "puts signature; print body",
    ),
    "go": (
        ["go", "run"],
        f"package main\nimport ({'; '.join(map(json.dumps, _GO))})\nfunc main() {{\nsecret := `{SECRET}`\n"
        'text, _ := os.ReadFile("event.json"); var event any; json.Unmarshal(text, &event)',
        'if err == nil { fmt.Printf("%s\\n%s", signature, body) } }',
    ),
    "java": (
        ["java", "-Dfile.encoding=UTF-8"],
        f'{_JAVA} String secret = "{SECRET}", json = Files.readString(Path.of("event.json"));',
        "System.out.println(signature); System.out.write(body); System.out.flush(); } }",
    ),
    "sh": (["sh"], f"BODY=$(cat event.json); SECRET='{SECRET}'", """printf '%s\\n%s' "$SIGNATURE" "$BODY\""""),
}
"""The program that runs the example in each language, and what stands before and behind the example."""


@pytest.mark.parametrize("language", _SIGNERS)
def test_the_documented_way_to_sign_works(language: str, tmp_path: Path) -> None:
    command, before, after = _SIGNERS[language]
    needs = [command[0], *{"sh": ["openssl"], "java": ["javac"]}.get(language, [])]
    if missing := [program for program in needs if shutil.which(program) is None]:
        pytest.skip(f"{missing[0]} is not on PATH: its example in docs/signing.md cannot run")
    file = tmp_path / f"Sign.{language}"
    file.write_text(_script(language, before, after), encoding="utf-8")
    (tmp_path / "event.json").write_text(json.dumps(_EVENT, ensure_ascii=False), encoding="utf-8")
    done = subprocess.run([*command, file], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    signature, _, body = done.stdout.partition(b"\n")
    assert json.loads(body) == _EVENT
    assert is_signed(body, signature.decode(), [SECRET.encode()])
