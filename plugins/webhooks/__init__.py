"""Orders from where shops keep them: the webhooks of platforms. docs/webhooks.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from ingestd.api import hookimpl
from ingestd.api.events import Principal, Request
from ingestd.api.hookspecs import Daemon
from ingestd.api.intake import Intake
from ingestd.api.options import NamedOptions, Options

from .generic import Generic
from .intake import WebhookIntake
from .shopify import Shopify
from .stripe import Stripe
from .webhook import Webhook
from .woocommerce import WooCommerce

__all__ = ["WebhooksPlugin"]

PLATFORMS: Mapping[str, Any] = {
    "generic": Generic, "shopify": Shopify, "woocommerce": WooCommerce, "stripe": Stripe,
}  # fmt: skip
"""The classes of webhooks by the `type` of their table."""


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

    @hookimpl
    def register_intakes(self, register: Callable[[Intake], None]) -> None:
        for platform in PLATFORMS.values():
            webhooks = [each for each in self._webhooks if type(each) is platform]
            if webhooks:
                register(WebhookIntake(webhooks))

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
