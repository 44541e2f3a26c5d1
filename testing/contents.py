"""The contract suite for the contents of a back end. `ingestd.testing.stores` explains how to use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ingestd.api import times
from ingestd.api.backend import Backend
from ingestd.api.contents import Contents, Entry
from ingestd.api.events import Record
from ingestd.api.journal import IDEMPOTENCY_KIND, Append, Cursor, IdempotencyKey
from ingestd.api.store import Field, state_key

from .backends import BackendContract, append_each

__all__ = ["ContentsContract", "all_entries", "sample_entries"]


def sample_entries(now: int) -> list[Entry]:
    """An entry of each form: with and without an expiry, an expired one, a large one, and an idempotency key."""

    def key(part: str, kind: str = "contract") -> str:
        return state_key(kind, "shop", part)

    return [
        Entry(key("lasting"), "a value"),
        Entry(key("empty"), ""),
        Entry(key("expiring"), 'ü | "€" 🛒', expires=now + 3_600_000),
        Entry(key("expired"), "late", expires=now - 1000),
        Entry(key("large"), "x" * 300_000),
        Entry(key("fields"), fields={"name": Field(now, "Ada"), "plan": Field(1, "a|b"), "": Field(-5, "")}),
        Entry(key("expiring fields"), fields={"name": Field(now, "Ada")}, expires=now + 3_600_000),
        Entry(key("expired fields"), fields={"name": Field(now, "Ada")}, expires=now - 2000),
        Entry(key("many fields"), fields={f"field {number}": Field(number, "v" * number) for number in range(1500)}),
        Entry(key("set"), members={"b": 2, "a": 2, "older": -7, "newer": now}),
        Entry(key("expiring set"), members={"one": 1, "two": now}, expires=now + 1_800_000),
        Entry(key("expired set"), members={"one": 1, "two": 2}, expires=now - 2000),
        Entry(key("many members"), members={f"member {number}": number for number in range(1500)}),
        Entry(key("seen", IDEMPOTENCY_KIND), "an answer", expires=now + 86_400_000),
    ]


async def all_entries(contents: Contents) -> dict[str, Entry]:
    """All entries by key. Fails if the contents give a key twice."""
    found: dict[str, Entry] = {}
    async for some in contents.entries():
        for entry in some:
            assert entry.key not in found
            found[entry.key] = entry
    return found


class ContentsContract(BackendContract):
    """What `ingestd store copy` needs."""

    @asynccontextmanager
    async def contents(self, folder: Path) -> AsyncIterator[tuple[Backend, Contents]]:
        async with self.backend(folder) as backend:
            assert backend.contents is not None
            yield backend, backend.contents

    async def test_entries_come_back_as_they_were_stored(self, tmp_path: Path) -> None:
        wanted = sample_entries(times.now())
        async with self.contents(tmp_path) as (_, contents):
            assert await all_entries(contents) == {}
            assert await contents.find(wanted) == [None] * len(wanted)
            await contents.replace(wanted)
            assert await all_entries(contents) == {entry.key: entry for entry in wanted}
        async with self.contents(tmp_path) as (_, contents):
            assert await contents.find(wanted) == wanted
            assert [entry and entry.digest() for entry in await contents.find(wanted)] == [
                entry.digest() for entry in wanted
            ]

    async def test_each_of_many_entries_comes_once(self, tmp_path: Path) -> None:
        wanted = {
            entry.key: entry
            for number in range(3000)
            for entry in (
                Entry(state_key("contract", "shop", f"{number}"), f"{number}"),
                Entry(state_key("contract-set", "shop", f"{number}"), members={f"{number}": number}),
            )
        }
        async with self.contents(tmp_path) as (_, contents):
            entries = [*wanted.values()]
            for start in range(0, len(entries), 500):
                await contents.replace(entries[start : start + 500])
            assert await all_entries(contents) == wanted

    async def test_an_entry_replaces_whatever_its_key_had(self, tmp_path: Path) -> None:
        forms = [
            Entry("", "a value", expires=times.now() + 3_600_000),
            Entry("", fields={"a": Field(1, "x"), "b": Field(2, "y")}),
            Entry("", fields={"b": Field(1, "older"), "c": Field(3, "z")}),
            Entry("", members={"a": 1, "b": 2}),
            Entry("", members={"b": 1, "c": 3}, expires=times.now() + 3_600_000),
            Entry("", "another", expires=times.now() + 1_000_000),
            Entry("", "another", expires=times.now() + 900_000),
        ]
        pairs = [(first, then) for first in forms for then in forms]
        befores, afters = [], []
        for number, (first, then) in enumerate(pairs):
            key = state_key("contract", "shop", f"{number}")
            befores.append(Entry(key, first.value, first.fields, first.members, first.expires))
            afters.append(Entry(key, then.value, then.fields, then.members, then.expires))
        async with self.contents(tmp_path) as (_, contents):
            await contents.replace(befores)
            assert await contents.find(befores) == befores
            await contents.replace(afters)
            assert await contents.find(afters) == afters
            assert await all_entries(contents) == {entry.key: entry for entry in afters}

    async def test_removed_entries_are_absent(self, tmp_path: Path) -> None:
        wanted = sample_entries(times.now())
        async with self.contents(tmp_path) as (_, contents):
            await contents.replace(wanted)
            await contents.remove(wanted[::2])
            assert await all_entries(contents) == {entry.key: entry for entry in wanted[1::2]}
            await contents.remove(wanted)
            assert await all_entries(contents) == {}

    async def test_the_keys_of_all_entries(self, tmp_path: Path) -> None:
        wanted = sample_entries(times.now())
        async with self.contents(tmp_path) as (_, contents):
            await contents.replace(wanted)
            await contents.remove(wanted[1::2])
            found = {key async for keys in contents.all_keys() for key in keys}
            assert {entry.key for entry in wanted[::2]} <= found

    async def test_transactions_and_contents_are_two_views_of_the_same(self, tmp_path: Path) -> None:
        now = times.now()
        value, fields, members = (state_key("contract", "shop", name) for name in ("value", "fields", "members"))
        other = state_key("contract", "shop", "other")
        async with self.contents(tmp_path) as (backend, contents):
            state = backend.store.begin(now)
            await state.renew(value, "a session", 1_800_000)
            await state.merge(fields, {"name": Field(now, "Ada")})
            await state.push(members, "one", now - 5, keep=10, ttl=60_000)
            await state.push(members, "two", now, keep=10, ttl=3_600_000)
            await backend.store.commit(state)
            wanted = [
                Entry(value, "a session", expires=now + 1_800_000),
                Entry(fields, fields={"name": Field(now, "Ada")}),
                Entry(members, members={"one": now - 5, "two": now}, expires=now + 3_600_000),
            ]
            assert await all_entries(contents) == {entry.key: entry for entry in wanted}
            # The transactions have cached these keys, and one that is absent.
            assert await backend.store.begin(now).get(other) is None
            await contents.replace([Entry(value, "moved"), Entry(other, "new", expires=now + 1000)])
            await contents.remove(wanted[1:])
            state = backend.store.begin(now)
            assert (await state.get(value), await state.get(other)) == ("moved", "new")
            assert (await state.fields(fields), await state.window(members)) == ({}, [])
            assert await backend.store.begin(now + 1001).get(other) is None

    async def test_a_message_that_was_seen_elsewhere_is_a_duplicate(self, tmp_path: Path) -> None:
        now = times.now()
        key = state_key(IDEMPOTENCY_KIND, "shop", "message")
        async with self.contents(tmp_path) as (backend, contents):
            await contents.replace([Entry(key, "the first answer", expires=now + 1000)])
            append = Append(
                backend.store.begin(now, event=True), Record("event", now, b"{}"), IdempotencyKey(key, "x", 1)
            )
            (error,) = await append_each(backend.journal, [append])
            assert error is not None
            assert await backend.journal.last() == 0
            later = Append(
                backend.store.begin(now + 5000, event=True), Record("event", now, b"{}"), IdempotencyKey(key, "y", 9000)
            )
            assert await append_each(backend.journal, [later]) == [None]
            assert await contents.find([Entry(key)]) == [Entry(key, "y", expires=now + 14_000)]

    async def test_an_empty_journal_continues_after_any_position(self, tmp_path: Path) -> None:
        now = times.now()
        async with self.contents(tmp_path) as (backend, contents):
            journal = backend.journal
            await contents.continue_after(1000)
            records = [Record("event", now, b'{"a": %d}' % number) for number in range(3)]
            assert await journal.commit(records, backend.store.begin(now)) == 1003
            assert (await journal.extent())[:3] == (1001, 1003, 3)
            cursor = await journal.acquire_cursor("a sink", "beginning")
            assert cursor.position == 1000
            await journal.commit([], backend.store.begin(now), Cursor("a sink", 1002, cursor.fence))
            await journal.release(cursor)
            while await journal.trim(1003, 500):
                pass
            await contents.continue_after(5000)
            await journal.commit(records, backend.store.begin(now))
        async with self.contents(tmp_path) as (backend, _):
            assert [record.position for record in await backend.journal.read(0, 10)] == [5001, 5002, 5003]
            assert await backend.journal.last() == 5003
            assert [(each.name, each.position) for each in await backend.journal.cursors()] == [("a sink", 1003)]
