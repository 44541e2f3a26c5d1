"""Shows what a message of a platform becomes, without storing anything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tornado.httputil import HTTPHeaders, HTTPInputError

from ingestd.api import output, times
from ingestd.api.errors import CommandError, Refused
from ingestd.api.events import Principal, Request
from ingestd.api.intake import Intake, Message, Route
from ingestd.api.outcomes import IgnoredTimestamp
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.observability.unusable_id_reports import IdField
from ingestd.pipeline.event_parser import EventParser
from ingestd.pipeline.resolver import Resolved
from ingestd.support.names import hint
from ingestd.support.unusable_ids import UnusableIds
from ingestd.validation.payload_schemas import PayloadSchemas
from ingestd.validation.validator import Validator, parse_body

__all__ = ["try_webhook"]

_ONLY_STORED = {"id", "sessionId", "sessionIsNew"}  # members that only a stored record has


async def try_webhook(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Print the records of a payload. Raises `CommandError` if anything of it is refused."""
    validator = Validator.load(config.schemas.directory)
    intake, route = _find(arguments.name, plugins)
    intake.check(validator.keys)
    headers = HTTPHeaders()
    for each in arguments.header:
        name, colon, value = each.partition(":")
        try:
            headers.add(name.strip() if colon else "", value.strip())
        except HTTPInputError:  # an empty name, too
            raise CommandError(f"--header: expected NAME: VALUE, got {each!r}") from None
    if len(body := _content(arguments.file)) > int(config.http.max_body):
        raise CommandError(f"the message has {len(body)} bytes, more than [http] max_body ({config.http.max_body})")
    request = Request(intake.endpoint, headers, body, received_at=times.now(), intake=intake, route=route)
    principal = Principal(intake.tenant_of(route) or "", route.name, signed=True)
    translation = intake.begin(request, principal, {}, validator.keys)
    translation.check = PayloadSchemas(intake).check
    reports = _Reports()
    parser = EventParser(validator, plugins.hooks, reports, unusable_ids=UnusableIds(config.ids.unusable))
    try:
        read = translation.read(0, parse_body(body), body)
    except Refused as refused:
        raise CommandError(_told("the message is refused", refused)) from None
    refusals = []
    for message in [read] if isinstance(read, Message) else read:
        try:
            event = parser.read(request, principal, message, record_id=request.id)
        except Refused as refused:
            refusals.append(_told(f"{message.body.get('key', message.kind)} is refused", refused))
        else:
            if not isinstance(event, Resolved):
                record = event.to_record().decode()
                output.write_json({name: value for name, value in record.items() if name not in _ONLY_STORED})
    if not read:
        sys.stderr.write(
            "the message means no event: its topic is another one or missing (--header), or it is a test\n"
        )
    if refusals:
        raise CommandError("; ".join(refusals))


def _find(name: str, plugins: Plugins) -> tuple[Intake, Route]:
    webhooks = {
        route.name: (intake, route)
        for intake in plugins.intakes
        for route in intake.routes
        if intake.tenant_of(route) is not None
    }
    if name not in webhooks:
        known = hint(name, webhooks) if webhooks else "there is none; add [plugins.webhooks.NAME] to the configuration"
        raise CommandError(f"no webhook has the name {name}; {known}")
    return webhooks[name]


def _content(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None


def _told(what: str, refused: Refused) -> str:
    faults = [f"{each.pointer or 'the body'}: {each.message}" for each in refused.errors]
    return f"{what}: {'; '.join(faults) or refused.detail}"


class _Reports:
    """Nothing of a trial is counted."""

    def timestamp_ignored(self, reason: IgnoredTimestamp) -> None: ...
    def unusable_id(self, field: IdField) -> None: ...
    def texts_as_numbers(self, count: int) -> None: ...
