"""docs/webhooks.md has the options of each type of webhook: compared with the code, both ways."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

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
