"""The answers that the loaders of the browser SDKs need. ingestd has no settings for them, so these are the least."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["OK", "settings_of_project", "source_config", "take_metrics"]

OK = b'{"success":true}'


def take_metrics(parameters: Mapping[str, str]) -> bytes:
    """For analytics.js, which reports figures about itself. They are dropped."""
    return OK


def settings_of_project(parameters: Mapping[str, str]) -> bytes:
    """For analytics.js with `cdnURL`: one integration, which sends to its `apiHost`, and no reports about itself."""
    return msgspec.json.encode({
        "integrations": {"Segment.io": {"apiKey": parameters["key"]}},
        "plan": {"track": {"__default": {"enabled": True, "integrations": {}}}},
        "metrics": {"sampleRate": 0},
    })  # fmt: skip


def source_config(parameters: Mapping[str, str]) -> bytes:
    """For RudderStack's SDK: a source without destinations, and without reports about itself."""
    off = {"enabled": False}
    return msgspec.json.encode({
        "source": {
            "id": "ingestd",
            "name": "ingestd",
            "enabled": True,
            "workspaceId": "ingestd",
            "config": {"statsCollection": {"errors": off, "metrics": off}},
            "destinations": [],
        },
    })  # fmt: skip
