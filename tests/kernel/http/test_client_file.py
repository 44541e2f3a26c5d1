"""GET /api/v1/analytics/client.js on both servers: caching, compression, CORS, and other methods."""

from __future__ import annotations

import gzip
from importlib.resources import files
from pathlib import Path

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPResponse

from ingestd.api.options import Origin
from ingestd.config import HttpOptions
from ingestd.http.client_file import browser_client
from tests.support.door import Door, MakeDoor

PATH = "/api/v1/analytics/client.js"
CONTENT = files("ingestd.clients.browser").joinpath("ingestd.js").read_bytes()
VERSION = browser_client().version


async def get(public: Door, target: str = PATH, method: str = "GET", **headers: str) -> HTTPResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    # By itself, the client of the test would ask for gzip, and unpack it.
    return await AsyncHTTPClient().fetch(
        f"http://127.0.0.1:{public.port}{target}", method=method, headers=named, raise_error=False,
        decompress_response=False, allow_nonstandard_methods=True,
    )  # fmt: skip


@pytest.mark.parametrize("target", [PATH, f"{PATH}/", f"{PATH}?v=other", f"{PATH}?v={VERSION}0", f"{PATH}?{VERSION}"])
async def test_the_client_is_kept_for_an_hour(tmp_path: Path, door: MakeDoor, target: str) -> None:
    async with door(tmp_path) as public:
        answer = await get(public, target)
        assert (answer.code, answer.body) == (200, CONTENT)
        assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert answer.headers["Cache-Control"] == "public, max-age=3600"
        assert answer.headers["ETag"] == f'"{VERSION}"'
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "X-Request-Id" in answer.headers


async def test_with_its_hash_in_the_url_the_client_is_kept_for_ever(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path) as public:
        answer = await get(public, f"{PATH}?v={VERSION}")
        assert (answer.code, answer.body) == (200, CONTENT)
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [("gzip, deflate, br", True), ("GZIP", True), ("br", False), ("gzip;q=0", False), ("br, gzip; q=0.0, x", False)],
)
async def test_the_client_is_compressed_for_browsers_that_say_so(
    tmp_path: Path, door: MakeDoor, accepted: str, packed: bool
) -> None:
    async with door(tmp_path) as public:
        answer = await get(public, Accept_Encoding=accepted)
        assert (gzip.decompress(answer.body) if packed else answer.body) == CONTENT
        assert (answer.headers.get("Content-Encoding") == "gzip") is packed
        assert (int(answer.headers["Content-Length"]) <= 6000) is packed
        assert answer.headers["Vary"] == "Accept-Encoding"
        tag = answer.headers["ETag"]
        assert (await get(public, Accept_Encoding=accepted, If_None_Match=tag)).code == 304


async def test_a_browser_that_has_the_file_gets_304(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path) as public:
        for condition in [f'"{VERSION}"', f'"x", W/"{VERSION}"', "*"]:
            answer = await get(public, If_None_Match=condition)
            assert (answer.code, answer.body or b"") == (304, b"")
            assert answer.headers["ETag"] == f'"{VERSION}"'
            assert answer.headers["Cache-Control"] == "public, max-age=3600"
        assert (await get(public, If_None_Match='"other"')).code == 200
        assert (await public.post()).code == 200  # the connection is in order


async def test_head_has_the_headers_of_get(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path) as public:
        answer = await get(public, method="HEAD")
        assert (answer.code, answer.body) == (200, b"")
        assert answer.headers["Content-Length"] == str(len(CONTENT))


async def test_other_methods_are_405_and_a_preflight_names_get(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path) as public:
        for method in ("POST", "PUT", "DELETE"):
            answer = await get(public, method=method)
            assert (answer.code, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
        preflight = await get(public, method="OPTIONS")
        assert preflight.code == 204
        assert preflight.headers["Access-Control-Allow-Methods"] == "GET"
        assert public.counted("invalid", "") is None


async def test_only_allowed_origins_may_load_the_module(tmp_path: Path, door: MakeDoor) -> None:
    options = HttpOptions(allowed_origins=(Origin("https://shop.example"),))
    async with door(tmp_path, options=options) as public:
        answer = await get(public, Origin="https://shop.example")
        assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert {*answer.headers.get_list("Vary")} == {"Origin", "Accept-Encoding"}
        answer = await get(public, Origin="https://other.example")
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_configuration_closes_the_path(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, options=HttpOptions(client=False)) as public:
        assert (await get(public)).code == 404
