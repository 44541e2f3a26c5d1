"""Published test vectors of HMAC-SHA256, if they are beside the checkout: valid and invalid signatures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ingestd.plugins.auth.hmac_auth import is_signed

VECTORS = Path(__file__).parents[3].parent / "shared" / "vectors"

pytestmark = pytest.mark.skipif(not VECTORS.is_dir(), reason="no published vectors beside the checkout")


def read(name: str) -> Any:
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))


def altered(tag: bytes) -> list[bytes]:
    """All tags that differ from this tag in one bit."""
    return [(int.from_bytes(tag) ^ 1 << bit).to_bytes(len(tag)) for bit in range(8 * len(tag))]


def test_the_vectors_of_rfc_4231() -> None:
    vectors = read("rfc4231_sha256.json")
    assert len(vectors) >= 6
    for vector in vectors:
        key, message, tag = (bytes.fromhex(vector[name]) for name in ("key_hex", "data_hex", "sha256"))
        assert is_signed(message, tag.hex(), [key])
        assert is_signed(message, tag.hex().upper(), [b"another", key])
        assert not is_signed(message + b"\0", tag.hex(), [key])
        assert not is_signed(message, tag.hex(), [key + b"x"])
        assert not is_signed(message, tag.hex(), [])
        for wrong in altered(tag):
            assert not is_signed(message, wrong.hex(), [key])


def test_the_vectors_of_project_wycheproof() -> None:
    suite = read("hmac_sha256_test.json")
    valid = 0
    for group in suite["testGroups"]:
        for test in group["tests"]:
            key, message = bytes.fromhex(test["key"]), bytes.fromhex(test["msg"])
            # Only a complete tag of 256 bits is a signature.
            wanted = test["result"] == "valid" and group["tagSize"] == 256
            assert is_signed(message, test["tag"], [key]) is wanted, test
            valid += wanted
    assert suite["numberOfTests"] == sum(len(group["tests"]) for group in suite["testGroups"])
    assert valid > 0


def test_no_part_of_a_tag_is_a_signature() -> None:
    for vector in read("rfc4231_sha256.json"):
        key, message, tag = bytes.fromhex(vector["key_hex"]), bytes.fromhex(vector["data_hex"]), vector["sha256"]
        for part in (tag[:-1], tag[:-2], tag[:32], tag[2:], tag[:2], "", tag + "00", tag + tag):
            assert not is_signed(message, part, [key])
