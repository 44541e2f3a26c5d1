"""Both servers read any bytes as the same requests, for every division into pieces."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from ingestd.api.options import Size
from ingestd.config import HttpOptions
from tests.support.door import Door, open_door
from tests.support.spoilt_http import pieces, spoilt_stream

AT_ONCE = 50
PATIENCE = 30.0

OPTIONS = HttpOptions(max_body=Size(2000), max_header_size=Size(4096))


class Answer(NamedTuple):
    """`code` is the code of the problem. `closes` tells whether the answer announces the end of the connection."""

    status: int
    code: str = ""
    closes: bool = False


MALFORMED = Answer(400, "invalid_http", closes=True)


async def answers(port: int, parts: Iterable[bytes]) -> tuple[list[Answer], bool]:
    """The answers to these bytes, and whether a reset of the connection may have lost more answers."""
    reset = False
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(OSError):  # the server may close before it has read everything
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            writer.write_eof()
        received = b""
        try:
            while part := await reader.read(65536):
                received += part
        except ConnectionError:
            reset = True
        writer.close()
    return list(read(received)), reset


def read(received: bytes) -> Iterable[Answer]:
    while received:
        head, end, received = received.partition(b"\r\n\r\n")
        assert end, head
        start, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        status = int(start.removeprefix("HTTP/1.1 ")[:3])
        length = int(headers.get("content-length", 0))
        code = ""
        if received.startswith(b"{"):  # an answer to HEAD has no body
            assert len(received) >= length, "half an answer"
            code = json.loads(received[:length]).get("code", "")
            received = received[length:]
        if status != 100:
            yield Answer(status, code, headers.get("connection") == "close")


# Differences: the fast server refuses streams with these bytes, for the reason in the key.
REFUSES = {
    "RFC 9112, 2.2: a server may accept a bare LF as the end of a line; Tornado does so until 6.7": re.compile(
        rb"(?<!\r)\n"
    ),
    "RFC 9112, 2.2: a bare CR ends no line; Tornado ignores any number of them before a request": re.compile(
        rb"\r(?!\n)"
    ),
    "RFC 9112, 6.1: HTTP/1.0 has no Transfer-Encoding": re.compile(
        rb"HTTP/1\.0\r\n(?s:.*)transfer-encoding", re.IGNORECASE
    ),
}
# The header Connection is a list (RFC 9110, 7.6.1), but Tornado reads it as one word.
LISTS = re.compile(rb"connection:[^\n]*,|(?:connection:(?s:.*)){2}", re.IGNORECASE)


def reason(stream: bytes, fast: list[Answer], tornado: list[Answer], *, reset: bool) -> str:
    """The reason for an allowed difference between the answers; empty if the difference is not allowed."""
    same = 0
    while fast[same : same + 1] == tornado[same : same + 1] != []:
        same += 1
    ours, theirs = fast[same:], tornado[same:]
    reasons = {
        "Tornado closes while more bytes arrive, so its answers are lost": reset and not theirs,
        **{why: ours == [MALFORMED] and pattern.search(stream) is not None for why, pattern in REFUSES.items()},
        "close in a list": LISTS.search(stream) is not None
        and (not ours or [ours[0]._replace(closes=False), *ours[1:]] == theirs[:1]),
        "keep-alive in a list": LISTS.search(stream) is not None and not theirs,
    }
    return next((why for why, holds in reasons.items() if holds), "")


@asynccontextmanager
async def time_limits(*doors: Door) -> AsyncIterator[None]:
    """Connections of these servers end after their usual time limits."""
    watching = [asyncio.ensure_future(door.connections.watch()) for door in doors]
    try:
        yield
    finally:
        for task in watching:
            task.cancel()


@pytest.mark.parametrize("streams", [700, pytest.param(5000, marks=pytest.mark.long)])
async def test_any_bytes_get_the_same_answers_from_both_servers_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    monkeypatch.setattr("ingestd.http.app._HELD_BACK", 0.05)
    # 150 clients in one process may need more than two seconds for their pieces, if the machine is busy.
    monkeypatch.setattr("ingestd.http.lingering._SECONDS", PATIENCE)
    chance = random.Random(6)
    alike = 0
    statuses: Counter[int] = Counter()
    (tmp_path / "fast").mkdir()
    (tmp_path / "tornado").mkdir()
    async with (
        open_door(tmp_path / "fast", server="fast", options=OPTIONS) as fast,
        open_door(tmp_path / "tornado", server="tornado", options=OPTIONS) as tornado,
        time_limits(fast, tornado),
    ):
        for _ in range(streams // AT_ONCE):
            some = [spoilt_stream(chance) for _ in range(AT_ONCE)]
            cut = [list(pieces(chance, stream)) for stream in some]
            found = await asyncio.gather(
                *(answers(fast.port, [stream]) for stream in some),
                *(answers(fast.port, parts) for parts in cut),
                *(answers(tornado.port, parts) for parts in cut),
            )
            for at, stream in enumerate(some):
                (whole, _), (in_pieces, lost), (theirs, reset) = found[at::AT_ONCE]
                assert (whole, False) == (in_pieces, lost), stream
                why = "" if whole == theirs else reason(stream, whole, theirs, reset=reset)
                assert whole == theirs or why, (stream, whole, theirs)
                alike += not why
                statuses.update(each.status for each in whole)
        for each in (fast, tornado):
            assert each.connections.buffered == 0
            assert each.counted("failed") is None
    assert alike > streams * 0.85
    assert {*statuses} == {200, 204, 400, 404, 405, 413, 415, 431}
