"""Answers that are held back come a second later, and none delays a shutdown or gets lost in it."""

from __future__ import annotations

import asyncio
from functools import partial

from ingestd.http.app import HeldBack


async def test_answers_come_late_in_their_order() -> None:
    held, sent = HeldBack(), list[str]()
    for name in "first", "second":
        held.add(partial(sent.append, name))
    await asyncio.sleep(0)
    assert sent == []
    await asyncio.sleep(1.1)
    assert sent == ["first", "second"]


async def test_there_is_a_bound_on_their_number() -> None:
    held, sent = HeldBack(), list[int]()
    for number in range(3000):
        held.add(partial(sent.append, number))
    await asyncio.sleep(0)
    assert sent == [*range(3000 - 1024)]
    held.send_all()
    await asyncio.sleep(0)
    assert sent == [*range(3000)]


async def test_a_shutdown_sends_all_of_them_once() -> None:
    held, sent = HeldBack(), list[str]()
    held.add(partial(sent.append, "held"))
    held.send_all()
    held.add(partial(sent.append, "later"))
    await asyncio.sleep(0)
    assert sent == ["held", "later"]
    await asyncio.sleep(1.1)
    assert sent == ["held", "later"]
