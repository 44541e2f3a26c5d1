"""The options of webhooks: docs/webhooks.md has each of them, and impossible ones stop the start."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from ingestd.api.errors import ConfigError
from ingestd.api.options import read_options
from ingestd.plugins.webhooks import WebhooksPlugin
from ingestd.plugins.webhooks.webhook import WebhookOptions

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
COMMON = {field.name for field in msgspec.structs.fields(WebhookOptions)} | {"type"}


def test_the_common_options_are_documented() -> None:
    table = PAGE.partition("| option of each type | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == COMMON


def test_the_options_of_each_type_are_documented_with_their_defaults() -> None:
    table = PAGE.partition("| type | option | default | |")[2].partition("\n\n")[0]
    told: dict[str, set[str]] = {}
    kind = ""
    for type_, names in re.findall(r"^\| (`\w+`)? ?\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE):
        kind = type_.strip("`") or kind
        told.setdefault(kind, set()).update(re.findall(r"\w+", names))
    kinds = WebhooksPlugin.Options.kinds
    assert told == {
        name: {field.name for field in msgspec.structs.fields(options)} - COMMON for name, options in kinds.items()
    }


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
