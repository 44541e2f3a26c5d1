"""The commands `ingestd keys create|list|rotate|revoke`."""

from __future__ import annotations

import difflib
import secrets
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from ingestd.api.errors import CommandError
from ingestd.api.hookspecs import Commands, Daemon
from ingestd.api.options import Duration
from ingestd.api.output import write, write_result
from ingestd.api.store import Store
from ingestd.api.times import format_time, now
from ingestd.support.names import check_name
from ingestd.support.terminal import table

from .key_registry import Key, change_keys, normal_id, read_keys

__all__ = ["create", "list_keys", "register", "revoke", "rotate"]


def register(commands: Commands) -> None:
    commands.describe("keys", "create, list, renew and revoke the keys of callers")
    parser = commands.add(
        "keys",
        "create",
        create,
        help="create a key; the secret of a server key is shown once",
        examples=[
            "ingestd keys create --kind public --tenant shop",
            "ingestd keys create --kind server --tenant shop --app CRM --permission ADMIN",
        ],
        json="print one JSON object",
    )
    parser.add_argument(
        "--kind", required=True, choices=("public", "server"), help="public for browsers and apps, server for a backend"
    )
    parser.add_argument(
        "--tenant", required=True, metavar="TENANT", type=_argument(check_name), help="the shop that the key belongs to"
    )
    parser.add_argument(
        "--label",
        metavar="TEXT",
        type=_argument(_check_label),
        default="",
        help="a note for people; keys list shows it",
    )
    parser.add_argument(
        "--app",
        metavar="APP",
        type=_argument(check_name),
        help="server keys only: the app that the key may use, such as CRM; default: none",
    )
    parser.add_argument(
        "--permission",
        metavar="PERMISSION",
        type=_argument(check_name),
        action="append",
        default=[],
        help="server keys only: a permission in that app, such as ADMIN; may be given again; default: none",
    )

    commands.add(
        "keys",
        "list",
        list_keys,
        help="show all keys, without secrets",
        examples=["ingestd keys list"],
        json="print one JSON object a line",
    )

    parser = commands.add(
        "keys",
        "rotate",
        rotate,
        help="give a server key a new secret, which is shown once",
        examples=["ingestd keys rotate 6f9619ff-8b86-d011-b42d-00cf4fc964ff --grace 1h"],
        json="print one JSON object",
    )
    parser.add_argument("id", metavar="ID", help="the id of the key, as ingestd keys list shows it")
    parser.add_argument(
        "--grace",
        metavar="TIME",
        type=_argument(Duration.parse),
        default=Duration.parse("24h"),
        help="how long the old secret stays valid; default: 24h",
    )

    parser = commands.add(
        "keys",
        "revoke",
        revoke,
        help="make a key invalid for good, within two seconds",
        examples=["ingestd keys revoke 6f9619ff-8b86-d011-b42d-00cf4fc964ff"],
    )
    parser.add_argument("id", metavar="ID", help="the id of the key, as ingestd keys list shows it")


async def create(args: Namespace, daemon: Daemon) -> None:
    if args.kind == "public" and (args.app or args.permission):
        raise CommandError(
            "--app and --permission are for server keys: a public key writes to the public endpoints only"
        )
    if args.permission and not args.app:
        raise CommandError("--permission needs --app, such as --app CRM")
    server = args.kind == "server"
    key = Key(
        id=str(uuid4()) if server else f"pk_{secrets.token_urlsafe(32)}",
        kind=args.kind,
        tenant=args.tenant,
        label=args.label,
        secret=secrets.token_urlsafe(32) if server else None,
        grants={args.app: tuple(dict.fromkeys(args.permission))} if args.app else {},
        created_at=now(),
    )
    await change_keys(daemon.store, lambda _: [key])
    _show(key, as_json=args.json)


async def list_keys(args: Namespace, daemon: Daemon) -> None:
    keys = sorted((await read_keys(daemon.store.begin(now()))).values(), key=lambda key: (key.created_at, key.id))
    rows = [("ID", "KIND", "TENANT", "STATE", "GRANTS", "CREATED", "LABEL")]
    rows += [
        (key.id, key.kind, key.tenant, _state(key), _grants(key), format_time(key.created_at), key.label)
        for key in keys
    ]
    write_result(*map(_facts, keys), lines=table(rows), as_json=args.json)


async def rotate(args: Namespace, daemon: Daemon) -> None:
    def change(key: Key) -> Key:
        if key.kind == "public":
            raise CommandError(
                "a public key has no secret to rotate: its id is the key; create a new one, put it where the old"
                " one is used, and then revoke the old one"
            )
        if key.revoked_at is not None:
            raise CommandError("this key is revoked; create a new one")
        return replace(
            key,
            secret=secrets.token_urlsafe(32),
            previous_secret=key.secret,
            previous_until=now() + args.grace.milliseconds,
        )

    key = await _change(daemon.store, args.id, change, "give it a new secret there, and the old one as previous_secret")
    _show(key, as_json=args.json)


async def revoke(args: Namespace, daemon: Daemon) -> None:
    def change(key: Key) -> Key:
        return key if key.revoked_at is not None else key.revoked(now())

    key = await _change(daemon.store, args.id, change, "remove it there and reload the daemon")
    write([f"revoked {key.id}"])


async def _change(store: Store, given: str, change: Callable[[Key], Key], cure: str) -> Key:
    """Change one key that a command created, and return the changed key."""
    changed: list[Key] = []

    def change_one(keys: dict[str, Key]) -> Iterable[Key]:
        key = keys.get(normal_id(given))
        if key is None:
            near = difflib.get_close_matches(given, keys, n=1)
            hint = f"did you mean {_short(keys[near[0]])}?" if near else "`ingestd keys list` shows them all"
            raise CommandError(f"there is no such key; {hint}")
        if key.declared:
            raise CommandError(f"this key is declared in the configuration; {cure}")
        changed[:] = [change(key)]
        return [] if changed[0] == key else changed

    await change_keys(store, change_one)
    return changed[0]


def _show(key: Key, *, as_json: bool) -> None:
    """Print a new or rotated key with its secret."""
    lines = [f"id:      {key.id}"]
    if key.secret:
        lines.append(f"secret:  {key.secret}   (shown once: keep it now)")
    lines += [f"kind:    {key.kind}", f"tenant:  {key.tenant}"]
    if key.label:
        lines.append(f"label:   {key.label}")
    if key.kind == "server":
        lines.append(f"grants:  {_grants(key)}")
    if key.previous_until is not None:
        lines.append(f"the old secret is valid until {format_time(key.previous_until)}")
    facts = {"id": key.id, "secret": key.secret, **_facts(key)} if key.secret else _facts(key)
    write_result(facts, lines=lines, as_json=as_json)


def _facts(key: Key) -> dict[str, Any]:
    """The members of a key that are not secret."""
    return {
        "id": key.id,
        "kind": key.kind,
        "tenant": key.tenant,
        "label": key.label,
        "grants": key.grants,
        "createdAt": format_time(key.created_at),
        "previousUntil": None if key.previous_until is None else format_time(key.previous_until),
        "revokedAt": None if key.revoked_at is None else format_time(key.revoked_at),
        "declared": key.declared,
    }


def _check_label(label: str) -> str:
    if len(label) > 200 or not label.isprintable():
        raise ValueError("a label is at most 200 printable characters")
    return label


def _short(key: Key) -> str:
    """A shortened key that an operator can find in the list. Errors are logged, and a key is never logged whole."""
    return f"{key.id[:13]}… ({key.kind}, {key.tenant})"


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "declared" if key.declared else "live"


def _grants(key: Key) -> str:
    return " ".join(f"{app}:{','.join(names) or 'none'}" for app, names in key.grants.items()) or "none"


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type that shows the text of a `ValueError`."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return convert
