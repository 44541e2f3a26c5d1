"""Authentication with server keys: the key's id is the bearer credential, and `x-signature` holds an HMAC of the body.

The HMAC is computed from the body as sent, or from its canonical form, which is ECMAScript's text of the same JSON.
Some clients sign the canonical form and send another form. The canonical form of 64 KiB takes up to 25 ms. So larger
bodies have none, `costly_checks` limits the callers, and another process computes it (`canonical_process`).

The body as sent is always checked first, even if a key's clients sign the canonical form. That check takes 0.04 ms at
most. The canonical form is computed only if it fails.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable

from ingestd.api import hookimpl
from ingestd.api.errors import Refused, Unauthorized, Unavailable
from ingestd.api.events import Principal, Request
from ingestd.api.hookspecs import Daemon
from ingestd.api.options import Options as BaseOptions
from ingestd.api.options import PositiveDuration
from ingestd.api.store import Store

from .canonical_process import CanonicalProcess
from .costly_checks import Caller, CostlyChecks
from .ecmascript import canonical
from .key_registry import Key, KeyRegistry
from .replays import ReplayRules

__all__ = ["HmacPlugin", "is_signed"]

_MAX_CANONICAL = 64 * 1024
_MAX_AT_ONCE = 2 * 1024  # here this takes up to 0.6 ms; the other process costs the event loop 0.1 to 0.7 ms

_MAX_ON_LOOP = 256 * 1024  # decoding and hashing this many bytes takes a millisecond

_COST_OF_LARGE = 16  # tokens; a canonical form costs a token for each KiB of the body

_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}")


class HmacPlugin:
    class Options(BaseOptions):
        max_age: PositiveDuration | None = None
        require_message_id: bool = False

    def __init__(self, options: Options) -> None:
        self._registry = KeyRegistry()
        self._tells_missing = False
        self._checks = CostlyChecks()
        self._canonical_process = CanonicalProcess()
        rules = ReplayRules(max_age=options.max_age, require_message_id=options.require_message_id)
        self._check_event = rules.check if rules else None
        self._message_life = rules.message_life
        self._principals: dict[str, tuple[Key, Principal]] = {}
        """The principals of keys that have signed, each with the key that it was made from."""

    @hookimpl
    async def startup(self, daemon: Daemon) -> None:
        self._tells_missing = daemon.plugin("keys") is None  # else that plugin reports missing keys
        await self._registry.start(daemon, name="hmac_auth: follow changes of keys")

    @hookimpl
    def take_over(self, predecessor: HmacPlugin) -> None:
        self._registry = predecessor._registry
        self._tells_missing = predecessor._tells_missing
        self._checks = predecessor._checks
        self._canonical_process = predecessor._canonical_process

    @hookimpl
    async def shutdown(self) -> None:
        await self._canonical_process.close()

    async def refresh(self, store: Store) -> None:
        """Load changed keys at once. Raises `Unavailable`."""
        await self._registry.refresh(store)

    @hookimpl
    async def store_lost(self, store: Store) -> str | None:
        """Load the keys that the plugin `keys` has written again."""
        await self._registry.recover(store)
        return self._registry.missing() if self._tells_missing else None

    @hookimpl
    def authenticate(self, request: Request) -> Principal | Awaitable[Principal] | None:
        """The principal of the server key that signed the request. None leaves other credentials to other plugins."""
        credential = None if request.endpoint.is_public else request.bearer()
        key = self._registry.server(credential) if credential is not None else None
        if key is None:
            return None
        signature = request.headers.get("x-signature")
        if signature is None:
            raise Unauthorized(
                "the header x-signature is missing: the HMAC-SHA256 of the body, in hex, keyed with the key's secret",
                code="invalid_signature",
            )
        signature = signature.strip()
        secrets = [secret.encode() for secret in key.secrets(request.received_at)]
        body = request.small_body(_MAX_ON_LOOP)
        if body is not None and is_signed(body, signature, secrets):
            return self._principal(key)
        if not _SHA256_HEX.fullmatch(signature):
            raise _wrong()
        check = self._check_large if body is None else self._check_canonical
        return check(request, key, signature, secrets)

    async def _check_large(self, request: Request, key: Key, signature: str, secrets: list[bytes]) -> Principal:
        """Decode and hash on another thread. These calls release the interpreter, so the event loop runs on."""
        caller = Caller.of(key.id, request.peer)
        async with self._checks.turn(caller):
            try:
                body = await request.load_body()
            except Unavailable:
                raise
            except Refused:  # the body cannot be decoded
                self._checks.failed(caller, _COST_OF_LARGE)
                raise
            signed = await asyncio.to_thread(is_signed, body, signature, secrets)
        if not signed:
            return await self._check_canonical(request, key, signature, secrets, cost=_COST_OF_LARGE)
        self._checks.succeeded(caller)
        return self._principal(key)

    async def _check_canonical(
        self, request: Request, key: Key, signature: str, secrets: list[bytes], *, cost: int = 0
    ) -> Principal:
        """Check the canonical form. `cost` is the number of tokens that the check has cost so far."""
        body = request.body
        caller = Caller.of(key.id, request.peer)
        if len(body) > _MAX_CANONICAL:
            if cost:
                self._checks.failed(caller, cost)
            raise _wrong()
        if len(body) <= _MAX_AT_ONCE:
            self._checks.admit(caller)
            form = canonical(body)
        else:
            async with self._checks.turn(caller):
                form = await self._canonical_process.canonical(body)
        if form is None or form == body or not is_signed(form, signature, secrets):
            self._checks.failed(caller, cost + 1 + len(body) // 1024)
            raise _wrong()
        self._checks.succeeded(caller)
        request.replace_body(form)
        return self._principal(key)

    def _principal(self, key: Key) -> Principal:
        known = self._principals.get(key.id)
        if known is None or known[0] is not key:
            made = Principal(
                key.tenant, key.id, key.access,
                signed=True, check_event=self._check_event, message_life=self._message_life,
            )  # fmt: skip
            known = self._principals[key.id] = key, made
        return known[1]


def _wrong() -> Unauthorized:
    return Unauthorized(
        "x-signature does not match: it must be the HMAC-SHA256, in hex, of exactly the bytes of the body, keyed with"
        " this key's secret. (Up to 64 KiB, the HMAC-SHA256 of JSON.stringify(JSON.parse(body)) is accepted too.)",
        code="invalid_signature",
    )


def is_signed(body: bytes, signature: str, secrets: list[bytes]) -> bool:
    """Whether the signature, in hex, is the HMAC of exactly these bytes with one of the secrets."""
    if not _SHA256_HEX.fullmatch(signature):
        return False
    given = bytes.fromhex(signature)
    return any(hmac.compare_digest(hmac.digest(secret, body, "sha256"), given) for secret in secrets)
