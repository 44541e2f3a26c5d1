"""The options of webhooks: conf/ingestd.toml has each of them, and impossible ones stop the start."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from ingestd.api.errors import ConfigError
from ingestd.api.options import read_options
from ingestd.plugins.webhooks import WebhooksPlugin
from ingestd.plugins.webhooks.webhook import WebhookOptions
from tests.kernel.config.test_conf import shown

REQUIRED = {"type", "tenant", "secret"}
COMMON = {*REQUIRED, "previous_secret"}


def test_the_options_of_each_type_are_shown_with_their_defaults() -> None:
    tables = {table["type"]: table for table in shown()["plugins"]["webhooks"].values()}
    kinds = WebhooksPlugin.Options.kinds
    assert tables.keys() == kinds.keys()
    assert {field.name for field in msgspec.structs.fields(WebhookOptions)} | {"type"} == COMMON
    for name, type_ in kinds.items():
        fields = msgspec.structs.fields(type_)
        assert {*tables[name]} == {field.name for field in fields} - (set() if name == "shopify" else COMMON - REQUIRED)
        given = {**tables[name], "secret": "x", **({"previous_secret": "x"} if name == "shopify" else {})}
        read = read_options(type_, given, path="plugins.webhooks", source="x", base=Path("/"))
        defaults = {field.name: field.default for field in fields if field.default not in (msgspec.NODEFAULT, None)}
        assert {option: getattr(read, option) for option in defaults} == defaults


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("de", {"secret": "shop"}, "plugins.webhooks.de.secret: expected at least 8 characters"),
        ("de", {"secret": "        "}, "plugins.webhooks.de.secret: expected at least 8 characters"),
        ("de", {"previous_secret": "old"}, "plugins.webhooks.de.previous_secret: expected at least 8 characters"),
        ("de", {"tenant": "a shop"}, "plugins.webhooks.de.tenant: expected a name"),
        ("de/paid", {}, "plugins.webhooks.de/paid: expected a name"),
    ],
)
def test_a_webhook_that_anybody_could_sign_or_nobody_could_reach_stops_the_start(
    name: str, options: dict[str, str], told: str
) -> None:
    table = {"type": "shopify", "tenant": "shop", "secret": "whsec_0123456789", **options}
    read = read_options(WebhooksPlugin.Options, {name: table}, path="plugins.webhooks", source="x", base=Path("/"))
    with pytest.raises(ConfigError, match=re.escape(told)):
        WebhooksPlugin(read)
