"""The contract suite for journals. Subclass it like `ingestd.testing.stores.StoreContract`."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ingestd.api.backend import Backend
from ingestd.api.errors import DuplicateMessage
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey, size_of
from ingestd.api.store import Field, state_key

from .backends import KEY, MEMBERS, NOW, OTHER, append, append_each, make_record
from .trimming import TrimmingContract

__all__ = ["JournalContract"]

FIELDS = state_key("contract-fields", "shop", "visitor")


class JournalContract(TrimmingContract):
    """The behaviour that consumers need: a fixed order, durable records, durable cursors."""

    async def test_an_empty_journal(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            assert await backend.journal.last() == 0
            assert list(await backend.journal.read(0, 10)) == []

    async def test_records_come_back_as_they_were_in_order(self, tmp_path: Path) -> None:
        records = [
            Record("event", NOW, '{"name": "“é” 🛒"}'.encode()),
            Record("identify", 0, b"{}"),
            Record("attribution", 2**53, b'{"a":\n"' + b"x" * 100_000 + b'"}'),
        ]
        async with self.backend(tmp_path) as backend:
            last = await append(backend, records)
            read = list(await backend.journal.read(0, 10))
            assert [replace(record, position=0) for record in read] == records
            assert read[-1].position == last == await backend.journal.last()

    async def test_positions_only_increase(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            given = await asyncio.gather(
                *(append(backend, [make_record(f"{n}-{m}") for m in range(1 + n % 3)]) for n in range(100))
            )
            positions = [record.position for record in await backend.journal.read(0, 1000)]
            assert len(positions) == sum(1 + n % 3 for n in range(100))
            assert positions == sorted(set(positions))
            assert positions == [*range(1, len(positions) + 1)], "they are consecutive"
            assert set(given) <= set(positions)
        async with self.backend(tmp_path) as backend:
            assert [record.position for record in await backend.journal.read(0, 1000)] == positions
            assert await append(backend, [make_record()]) > positions[-1]

    async def test_the_records_of_one_append_stay_together(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await asyncio.gather(*(append(backend, [make_record(f"{n}")] * 3) for n in range(50)))
            ids = [record.decode()["id"] for record in await backend.journal.read(0, 1000)]
            assert all(len(set(ids[start : start + 3])) == 1 for start in range(0, 150, 3))

    async def test_long_records_are_read_a_few_at_a_time(self, tmp_path: Path) -> None:
        """The whole journal must not come into memory at once."""
        async with self.backend(tmp_path) as backend:
            body = b'{"long":"%s"}' % (b"x" * 100_000)
            for _ in range(8):
                await append(backend, [Record("event", NOW, body)] * 100)
            found: list[int] = []
            while some := await backend.journal.read(found[-1] if found else 0, 1000):
                assert sum(len(record.body) for record in some) < 50_000_000
                found += [record.position for record in some]
            assert found == [*range(1, 801)]

    async def test_reading_goes_on_behind_a_position_and_is_limited(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            last = await append(backend, [make_record(f"{n}") for n in range(700)])
            found: list[str] = []
            after = 0
            while records := await backend.journal.read(after, 300):
                assert len(records) <= 300
                assert all(record.position > after for record in records)
                found += [record.decode()["id"] for record in records]
                after = records[-1].position
            assert found == [f"{n}" for n in range(700)]
            assert after == last
            assert list(await backend.journal.read(last, 10)) == []
            assert len(await backend.journal.read(0, 1)) == 1

    async def test_an_append_is_durable_with_the_state_and_the_cursor(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            state = backend.store.begin(NOW)
            await state.put(KEY, "value")
            position = await backend.journal.commit([make_record()], state, cursor._replace(position=7))
        async with self.backend(tmp_path) as backend:
            assert [record.position for record in await backend.journal.read(0, 10)] == [position]
            assert await backend.store.begin(NOW).get(KEY) == "value"
            assert (await backend.journal.acquire_cursor("consumer", "beginning")).position == 7

    async def test_a_cursor_moves_without_records(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            assert await append(backend, [], cursor._replace(position=3)) == 3
        async with self.backend(tmp_path) as backend:
            assert (await backend.journal.acquire_cursor("consumer", "now")).position == 3

    async def test_a_cursor_may_be_set_back(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            await append(backend, [], cursor._replace(position=9))
            await append(backend, [], cursor._replace(position=2))
        async with self.backend(tmp_path) as backend:
            assert (await backend.journal.acquire_cursor("consumer", "beginning")).position == 2

    async def test_a_new_name_starts_as_told_for_good(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            last = await append(backend, [make_record(), make_record()])
            assert (await backend.journal.acquire_cursor("old", "beginning")).position == 0
            assert (await backend.journal.acquire_cursor("new", "now")).position == last
        async with self.backend(tmp_path) as backend:
            await append(backend, [make_record()])
            assert (await backend.journal.acquire_cursor("old", "now")).position == 0
            assert (await backend.journal.acquire_cursor("new", "now")).position == last

    async def test_each_name_has_its_own_place(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            one = await backend.journal.acquire_cursor("one", "beginning")
            assert one.name == "one"
            await append(backend, [], one._replace(position=5))
            assert (await backend.journal.acquire_cursor("two", "beginning")).position == 0

    async def test_a_place_is_there_before_anybody_holds_it(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            last = await append(backend, [make_record(), make_record()])
            assert await backend.journal.ensure_cursor("old", "beginning") == 0
            assert await backend.journal.ensure_cursor("new", "now") == last
            await append(backend, [make_record()])
            assert await backend.journal.ensure_cursor("new", "now") == last
            held = await backend.journal.acquire_cursor("new", "now")
            assert held.position == last
            await backend.journal.release(held)
            assert (await backend.journal.acquire_cursor("new", "now")).position == last
            assert {cursor.name: cursor.position for cursor in await backend.journal.cursors()} == {"new": 2, "old": 0}

    async def test_a_step_writes_state_records_and_place_as_one(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            state = backend.store.begin(NOW, step=True)
            await state.put(KEY, "old", 1000)
            await state.put(KEY, "value", 2000)
            await state.merge(FIELDS, {"plan": Field(2, "gold"), "none": Field(1, "")})
            for number in range(5):
                await state.push(MEMBERS, f"m{number}", number, keep=4, ttl=9000)
            await state.pull(MEMBERS, ["m2"])
            assert await state.get(KEY) == "value"
            await backend.journal.commit([make_record("derived")], state, cursor._replace(position=1))
        async with self.backend(tmp_path) as backend:
            for step in (True, False):
                state = backend.store.begin(NOW + 2000, step=step)
                await state.load([KEY], [MEMBERS])
                assert await state.get(KEY) == "value"
                assert await state.fields(FIELDS) == {"plan": Field(2, "gold"), "none": Field(1, "")}
                assert await state.window(MEMBERS) == [("m1", 1), ("m3", 3), ("m4", 4)]
                late = backend.store.begin(NOW + 9001, step=step)
                assert (await late.get(KEY), await late.window(MEMBERS)) == (None, [])
            cursor = await backend.journal.acquire_cursor("consumer", "beginning")
            assert cursor.position == 1
            state = backend.store.begin(NOW, step=True)
            await state.delete(KEY)
            await state.delete(MEMBERS)
            assert await state.swap(OTHER, None, "kept")
            assert await state.renew(OTHER, "candidate", 1000) == ("kept", False)
            await backend.journal.commit([], state, cursor._replace(position=1))
            state = backend.store.begin(NOW)
            assert (await state.get(KEY), await state.window(MEMBERS), await state.get(OTHER)) == (None, [], "kept")
            assert len(await backend.journal.read(0, 10)) == 1

    async def test_a_claim_is_made_with_its_record_and_only_once(self, tmp_path: Path) -> None:
        async def claim(backend: Backend, value: str, now: int = NOW) -> str:
            state = backend.store.begin(now, event=True)
            appends = [Append(state, make_record(value), IdempotencyKey(KEY, value, 1000))]
            (error,) = await append_each(backend.journal, appends)
            assert error is None or isinstance(error, DuplicateMessage)
            return value if error is None else error.value

        async with self.backend(tmp_path) as backend:
            assert await backend.journal.find_duplicate(KEY, backend.store.begin(NOW, event=True)) is None
            answers = await asyncio.gather(*(claim(backend, f"{number}") for number in range(50)))
            assert len({*answers}) == 1
            assert [record.decode()["id"] for record in await backend.journal.read(0, 100)] == answers[:1]
        async with self.backend(tmp_path) as backend:
            assert await backend.journal.find_duplicate(KEY, backend.store.begin(NOW + 1000, event=True)) in {
                None,
                answers[0],
            }
            assert await claim(backend, "late", NOW + 1000) == answers[0]
            assert await backend.journal.find_duplicate(KEY, backend.store.begin(NOW + 1001, event=True)) is None
            assert await claim(backend, "over", NOW + 1001) == "over"
            assert len(await backend.journal.read(0, 100)) == 2

    async def test_events_that_are_appended_together_keep_their_order_and_fail_alone(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            earlier = backend.store.begin(NOW, event=True)
            taken = IdempotencyKey(f"{KEY}-3", "first", 1000)
            assert await append_each(backend.journal, [Append(earlier, make_record("taken"), taken)]) == [None]
            appends = []
            for number in range(100):
                state = backend.store.begin(NOW, event=True)
                if number % 2:
                    await state.put(f"{KEY}:{number}", f"{number}")
                claim = IdempotencyKey(f"{KEY}-{number % 7}", f"{number}", 1000) if number % 10 == 3 else None
                appends.append(Append(state, make_record(f"{number}"), claim))
            errors = await append_each(backend.journal, appends)
            first: dict[int, str] = {3: "first"}
            refused = {}
            for number in range(3, 100, 10):
                if first.setdefault(number % 7, f"{number}") != f"{number}":
                    refused[number] = first[number % 7]
            assert {index for index, error in enumerate(errors) if error is not None} == {*refused}
            assert {n: error.value for n, error in enumerate(errors) if isinstance(error, DuplicateMessage)} == refused
            assert await append_each(backend.journal, []) == []
        async with self.backend(tmp_path) as backend:
            ids = [record.decode()["id"] for record in await backend.journal.read(0, 1000)]
            assert ids == ["taken", *(f"{number}" for number in range(100) if number not in refused)]
            reader = backend.store.begin(NOW)
            for number in set(range(1, 100, 2)) - refused.keys():
                assert await reader.get(f"{KEY}:{number}") == f"{number}"

    async def test_an_event_without_a_record_is_committed_with_the_others(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            appends = []
            for number in range(50):
                state = backend.store.begin(NOW, event=True)
                await state.put(f"{KEY}:{number}", f"{number}")
                appends.append(Append(state, None if number % 10 == 3 else make_record(f"{number}")))
            assert await append_each(backend.journal, appends) == [None] * 50
        async with self.backend(tmp_path) as backend:
            ids = [record.decode()["id"] for record in await backend.journal.read(0, 1000)]
            assert ids == [f"{number}" for number in range(50) if number % 10 != 3]
            reader = backend.store.begin(NOW)
            for number in range(50):
                assert await reader.get(f"{KEY}:{number}") == f"{number}"

    async def test_events_see_the_writes_of_earlier_ones_before_the_commit(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            appends = []
            for number in range(30):
                state = backend.store.begin(NOW, event=True)
                assert await state.put(KEY, f"{number}") == (f"{number - 1}" if number else None)
                await state.push(MEMBERS, f"{number % 7}", number, keep=5)
                assert len(await state.window(MEMBERS)) == min(number + 1, 5)
                await state.merge(FIELDS, {f"{number % 9}": Field(number, f"{number}")}, keep=6)
                assert len(await state.fields(FIELDS)) == min(number + 1, 6)
                appends.append(Append(state, make_record(f"{number}")))
            assert await append_each(backend.journal, appends) == [None] * 30
            reader = backend.store.begin(NOW)
            assert await reader.get(KEY) == "29"
            assert [at for _, at in await reader.window(MEMBERS)] == [25, 26, 27, 28, 29]
            assert sorted(field.at for field in (await reader.fields(FIELDS)).values()) == [24, 25, 26, 27, 28, 29]

    async def test_the_calls_of_a_transaction_are_made_when_it_is_durable(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            made: list[str] = []
            appends = []
            for value in ("first", "again"):
                state = backend.store.begin(NOW, event=True)
                await state.put(OTHER, value)
                state.on_commit(partial(made.append, value))
                appends.append(Append(state, make_record(value)))
            state = backend.store.begin(NOW)
            state.on_commit(partial(made.append, "never"))
            assert not made
            assert await append_each(backend.journal, appends) == [None, None]
            assert made == ["first", "again"]
            state = backend.store.begin(NOW)
            state.on_commit(partial(made.append, "step"))
            await backend.journal.commit([make_record("step")], state)
            state = backend.store.begin(NOW)
            await state.put(KEY, "value")
            state.on_commit(partial(made.append, "state"))
            await backend.store.commit(state)
            assert made == ["first", "again", "step", "state"]

    async def test_a_replaced_record_keeps_its_place_and_others_stay(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await append(backend, [make_record(f"{n}" * 50) for n in range(300)])
            before = list(await backend.journal.read(0, 1000))
            assert await backend.journal.replace([]) == 0
            changes = [(record, b'{"id": null}') for record in before[10:290]]
            assert await backend.journal.replace(changes) == 280
            expected = [*before[:10], *(replace(record, body=body) for record, body in changes), *before[290:]]
            assert list(await backend.journal.read(0, 1000)) == expected
            assert (await backend.journal.extent()).bytes == sum(size_of(record) for record in expected)
        async with self.backend(tmp_path) as backend:
            assert list(await backend.journal.read(0, 1000)) == expected

    async def test_only_what_is_there_as_it_was_read_is_replaced(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await append(backend, [make_record("one"), make_record("two")])
            one, two = await backend.journal.read(0, 10)
            assert await backend.journal.replace([(one, b'{"id": 1}')]) == 1
            absent = replace(two, position=two.position + 5)
            assert await backend.journal.replace([(one, b"{}"), (two, b'{"id": 2}'), (absent, b"{}")]) == 1
            assert [record.body for record in await backend.journal.read(0, 10)] == [b'{"id": 1}', b'{"id": 2}']

    async def test_waiting_ends_with_the_next_record(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            first = await append(backend, [make_record()])
            await asyncio.wait_for(backend.journal.wait(0), 5)
            waiting = [asyncio.ensure_future(backend.journal.wait(first)) for _ in range(3)]
            await asyncio.sleep(0.02)
            assert not any(task.done() for task in waiting)
            second = await append(backend, [make_record()])
            await asyncio.wait_for(asyncio.gather(*waiting), 5)
            assert [record.position for record in await backend.journal.read(first, 10)] == [second]

    async def test_waiting_can_be_given_up(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            given_up = asyncio.ensure_future(backend.journal.wait(0))
            stays = asyncio.ensure_future(backend.journal.wait(0))
            await asyncio.sleep(0.01)
            given_up.cancel()
            await asyncio.wait([given_up])
            await append(backend, [make_record()])
            await asyncio.wait_for(stays, 5)

    async def test_who_stops_waiting_for_an_append_leaves_the_others_theirs(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            tasks = [asyncio.ensure_future(append(backend, [make_record(f"{n}")])) for n in range(10)]
            await asyncio.sleep(0)
            tasks[3].cancel()
            await asyncio.wait(tasks)
            kept = [task.result() for task in tasks if not task.cancelled()]
            assert len(kept) == 9
            assert set(kept) <= {record.position for record in await backend.journal.read(0, 100)}
