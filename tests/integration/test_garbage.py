"""What a request leaves is freed with its answer: the garbage collector, which stops the loop, has nothing to do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.door import PAGE_VIEW, MakeDoor


@contextmanager
def collected() -> Iterator[list[str]]:
    """The types of ingestd's objects that only the garbage collector could free."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("ingestd")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


BATCH = {"events": [{**PAGE_VIEW, "anonymousId": f"visitor-{number % 3}"} for number in range(9)]}
IDENTIFY = {"anonymousId": "visitor", "userId": "user", "traits": {"name": "Ada"}}
BAD = {**PAGE_VIEW, "anonymousId": 1}
MESSAGE = {**PAGE_VIEW, "messageId": "m-1"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/track", PAGE_VIEW, 200),
        ("/track", MESSAGE, 200),
        ("/track", BAD, 400),
        ("/track", {**PAGE_VIEW, "key": "No Such Key"}, 404),
        ("/identify/public", IDENTIFY, 200),
        ("/batch", BATCH, 200),
        ("/batch", {"events": [MESSAGE, BAD, MESSAGE, {**IDENTIFY, "type": "identify"}, PAGE_VIEW]}, 200),
        ("/batch", {"events": []}, 400),
        ("/nowhere", {}, 404),
    ],
)
async def test_a_request_is_freed_with_its_answer(
    tmp_path: Path, door: MakeDoor, path: str, body: dict[str, Any], status: int
) -> None:
    async with door(tmp_path) as public:
        await public.post(body, path)
        with collected() as found:
            for _ in range(3):
                assert (await public.post(body, path)).code == status
            await asyncio.sleep(0.05)  # so that the connections, too, have ended
        assert found == []
