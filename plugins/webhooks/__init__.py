"""Orders from where shops keep them: the webhooks of platforms. docs/webhooks.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from ingestd.api import hookimpl
from ingestd.api.events import Event, Principal, Request
from ingestd.api.hookspecs import Daemon
from ingestd.api.intake import Intake
from ingestd.api.options import NamedOptions, Options
from ingestd.support.ids import named_uuid

from .generic import Generic
from .intake import ListsIntake, WebhookIntake
from .shopify import Shopify
from .stripe import Stripe
from .webhook import Webhook
from .woocommerce import WooCommerce

__all__ = ["WebhooksPlugin"]

PLATFORMS: Mapping[str, Any] = {
    "generic": Generic, "shopify": Shopify, "woocommerce": WooCommerce, "stripe": Stripe,
}  # fmt: skip
"""The classes of webhooks by the `type` of their table."""
_OWN_IDS = tuple(f"{platform.endpoint.value} " for platform in PLATFORMS.values())
"""How the ids begin that webhooks make. They have the numbers of orders, which anybody can guess."""


class WebhooksPlugin:
    class Options(NamedOptions):
        kinds: ClassVar[Mapping[str, type[Options]]] = {name: each.Options for name, each in PLATFORMS.items()}

    def __init__(self, options: Options) -> None:
        self._webhooks: list[Webhook] = [
            PLATFORMS[table.type](name, table)  # type: ignore[attr-defined]  # each has it
            for name, table in options.tables.items()
        ]
        if self._webhooks:  # else it would slow each event
            self.authenticate = hookimpl(_authenticate)
            self.prepare = hookimpl(_keep_apart)

    @hookimpl
    def register_intakes(self, register: Callable[[Intake], None]) -> None:
        for platform in PLATFORMS.values():
            webhooks = [each for each in self._webhooks if type(each) is platform]
            if webhooks:
                register((ListsIntake if platform.has_lists else WebhookIntake)(webhooks))

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        for webhook in self._webhooks:
            webhook.unusable_ids = daemon.unusable_ids

    @hookimpl
    def take_over(self, predecessor: WebhooksPlugin, daemon: Daemon) -> None:
        self.startup(daemon)


def _authenticate(request: Request) -> Awaitable[Principal] | None:
    intake = request.intake
    return intake.authenticate(request) if isinstance(intake, WebhookIntake) else None


def _keep_apart(event: Event, request: Request) -> None:
    """Give a page's event other ids than those of webhooks.

    Else a page could send the message of an order before the platform does, which would then be taken for a repetition.
    Or it could arrive by a campaign as the visitor who stands for the order of a guest.
    """
    if event.signed:
        return
    if event.message_id is not None and event.message_id.startswith(_OWN_IDS):
        event.message_id = named_uuid("message of a page", event.message_id)
    if event.anonymous_id.startswith(_OWN_IDS):
        event.anonymous_id = named_uuid("visitor of a page", event.anonymous_id)
