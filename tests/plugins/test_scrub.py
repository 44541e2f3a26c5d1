"""Members that the plugin `scrub` removes or hashes are not in any file."""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

from ingestd.api.options import read_options
from ingestd.plugins.identity import IdentityPlugin
from ingestd.plugins.scrub import ScrubPlugin
from tests.support.door import MakeDoor

SECRET = "a secret of the shop, which is long"
TABLE = {
    "drop": ["/data/products/*/note", "/context/ip", "/extra/phone"],
    "hash": ["/data/recipient", "/traits/email"],
    "secret": SECRET,
}


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def test_scrubbed_members_of_events_and_identify_requests_are_stored_nowhere(
    door: MakeDoor, tmp_path: Path
) -> None:
    options = read_options(ScrubPlugin.Options, TABLE, path="plugins.scrub", source="x.toml", base=tmp_path)
    event: dict[str, Any] = {
        "key": "Product Shared", "anonymousId": "visitor", "phone": "private-1", "context": {"ip": "private-2"},
        "data": {"recipient": "private-3", "products": [{"note": "private-4", "sku": "s"}]},
    }  # fmt: skip
    identify: dict[str, Any] = {
        "anonymousId": "visitor",
        "userId": "u",
        "traits": {"email": "private-3", "plan": "gold"},
    }
    digest = hmac.new(SECRET.encode(), b"private-3", "sha256").hexdigest()
    async with door(tmp_path, ScrubPlugin(options), IdentityPlugin(IdentityPlugin.Options())) as public:
        batch = {"events": [event, {**identify, "type": "identify"}]}
        for path, body in (("/track", event), ("/identify/public", identify), ("/batch", batch)):
            answer = await public.post(body, path)
            assert (answer.code, b"private" in answer.body) == (200, False), json.loads(answer.body)
        records = await public.records()
        assert [record.get("data") for record in records] == [
            {"recipient": digest, "products": [{"sku": "s"}]}, None
        ] * 2  # fmt: skip
        assert [record.get("traits") for record in records] == [None, {"email": digest, "plan": "gold"}] * 2
        assert [(record["context"], record["extra"]) for record in records] == [({}, {})] * 4
    assert files_with(tmp_path, digest)
    assert files_with(tmp_path, "private-") == []
