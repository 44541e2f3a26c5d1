"""The contract suite for state stores. Subclass it in a test module::

    class TestMyStore(StoreContract):
        @asynccontextmanager
        async def backend(self, folder):
            backend = make_my_backend(folder)
            await backend.open(serving=True)
            try:
                yield backend
            finally:
                await backend.close()

The suite needs pytest, and pytest-tornasync to run its coroutines.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ingestd.api.errors import WriteConflict
from ingestd.api.store import Field, key_digest, state_key

from .backends import KEY, MEMBERS, NOW, OTHER
from .fields import FieldsContract
from .sets import SetsContract

__all__ = ["StoreContract"]


class StoreContract(FieldsContract, SetsContract):
    """The behaviour that plugins need: atomic, in order, durable after the commit."""

    async def test_a_key_never_written_has_no_value_and_no_fields(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert await state.get(KEY) is None
            assert await state.fields(KEY) == {}
            await state.delete(KEY)
            await backend.store.commit(state)

    async def test_put_returns_what_it_replaced(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert await state.put(KEY, "one") is None
            assert await state.put(KEY, "two") == "one"
            assert await state.get(KEY) == "two"

    async def test_units_have_their_time(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            assert backend.store.begin(NOW).now == NOW

    async def test_a_life_ends_right_after_its_last_millisecond(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "value", 1000)
            await backend.store.commit(state)
            assert await backend.store.begin(NOW + 1000).get(KEY) == "value"
            late = backend.store.begin(NOW + 1001)
            assert await late.get(KEY) is None
            assert await late.swap(KEY, "value", "x") is False
            assert await late.put(KEY, "next") is None

    async def test_without_ttl_an_entry_is_kept_for_ever(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "value")
            await backend.store.commit(state)
            assert await backend.store.begin(NOW + 10**12).get(KEY) == "value"

    async def test_the_same_value_again_never_shortens_a_life(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "value", 1000)
            await state.put(KEY, "value", 10)
            assert await state.swap(KEY, "value", "value", 10)
            await state.renew(KEY, "candidate", 10)
            await backend.store.commit(state)
            assert await backend.store.begin(NOW + 1000).get(KEY) == "value"
            await state.put(OTHER, "value")
            await state.put(OTHER, "value", 10)
            await state.renew(OTHER, "candidate", 10)
            await backend.store.commit(state)
            assert await backend.store.begin(NOW + 10**12).get(OTHER) == "value"

    async def test_the_same_value_again_may_lengthen_a_life(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "value", 10)
            await state.put(KEY, "value", 1000)
            await backend.store.commit(state)
            assert await backend.store.begin(NOW + 1000).get(KEY) == "value"
            await state.put(KEY, "value")
            await backend.store.commit(state)
            assert await backend.store.begin(NOW + 10**12).get(KEY) == "value"

    async def test_another_value_has_its_own_life(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "value", 1000)
            await state.put(KEY, "other", 10)
            assert await backend.store.begin(NOW + 11).get(KEY) is None

    async def test_swap_changes_only_what_is_as_expected(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert await state.swap(KEY, "anything", "x") is False
            assert await state.get(KEY) is None
            assert await state.swap(KEY, None, "one") is True
            assert await state.swap(KEY, None, "two") is False
            assert await state.swap(KEY, "two", "three") is False
            assert await state.swap(KEY, "one", "two") is True
            assert await state.get(KEY) == "two"

    async def test_renew_creates_once_and_slides(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:

            async def renew(now: int, candidate: str) -> tuple[str, bool]:
                state = backend.store.begin(now)
                result = await state.renew(KEY, candidate, 1000)
                await backend.store.commit(state)
                return result

            assert await renew(NOW, "one") == ("one", True)
            assert await renew(NOW + 1000, "two") == ("one", False)
            assert await renew(NOW + 500, "two") == ("one", False), "an earlier time shortens nothing"
            assert await renew(NOW + 2000, "three") == ("one", False)
            assert await renew(NOW + 3001, "four") == ("four", True)

    async def test_exactly_one_of_many_at_once_creates(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:

            async def one(number: int) -> tuple[str, bool]:
                state = backend.store.begin(NOW, event=True)
                result = await state.renew(KEY, f"candidate {number}", 1000)
                await backend.store.commit(state)
                return result

            results = await asyncio.gather(*(one(number) for number in range(100)))
            assert [created for _, created in results].count(True) == 1
            assert {value for value, _ in results} == {value for value, created in results if created}

    async def test_exactly_one_of_many_swaps_at_once_wins(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:

            async def one(number: int) -> bool:
                state = backend.store.begin(NOW, event=True)
                result = await state.swap(KEY, None, str(number))
                await backend.store.commit(state)
                return result

            won = await asyncio.gather(*map(one, range(100)))
            assert won.count(True) == 1
            assert await backend.store.begin(NOW).get(KEY) == str(won.index(True))

    async def test_delete_removes_a_value_and_fields(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "value")
            await state.merge(OTHER, {"plan": Field(1, "gold")})
            await backend.store.commit(state)
            state = backend.store.begin(NOW)
            await state.delete(KEY)
            await state.delete(OTHER)
            await backend.store.commit(state)
            assert await state.get(KEY) is None
            assert await state.fields(OTHER) == {}
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert (await state.get(KEY), await state.fields(OTHER)) == (None, {})

    async def test_events_see_at_once_what_earlier_events_have_written(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            states = [backend.store.begin(NOW, event=True) for _ in range(2)]
            await states[0].put(KEY, "value")
            await states[0].merge(OTHER, {"plan": Field(1, "gold")})
            await states[0].push(MEMBERS, "member", 1, keep=9)
            assert await states[1].get(KEY) == "value"
            assert await states[1].fields(OTHER) == {"plan": Field(1, "gold")}
            assert await states[1].window(MEMBERS) == [("member", 1)]
            for state in states:
                await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            assert await backend.store.begin(NOW).get(KEY) == "value"

    async def test_what_was_committed_is_there_after_reopening(self, tmp_path: Path) -> None:
        text = "text \x00 “é” 🛒 ' \" \\ "
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, text, 1000)
            await state.merge(OTHER, {text: Field(3, text), "": Field(0, "")})
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            assert await backend.store.begin(NOW + 1000).get(KEY) == text
            assert await backend.store.begin(NOW + 1001).get(KEY) is None
            assert await backend.store.begin(NOW).fields(OTHER) == {text: Field(3, text), "": Field(0, "")}

    async def test_a_committed_event_has_read_only_what_is_durable(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            await backend.store.begin(NOW, event=True).put(KEY, "value")  # by a transaction that is never committed
            reader = backend.store.begin(NOW, event=True)
            seen = await reader.get(KEY)
            try:
                await backend.store.commit(reader)
            except WriteConflict:
                assert backend.store.may_conflict
                seen = None
        async with self.backend(tmp_path) as backend:
            assert await backend.store.begin(NOW).get(KEY) == seen

    async def test_a_slid_life_is_durable(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            for at in (NOW, NOW + 900):
                state = backend.store.begin(at)
                await state.renew(KEY, "value", 1000)
                await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            assert await backend.store.begin(NOW + 1900).get(KEY) == "value"

    async def test_many_keys_at_once(self, tmp_path: Path) -> None:
        keys = [state_key("contract", "shop", str(number)) for number in range(1000)]
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await asyncio.gather(*(state.put(key, key) for key in keys))
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            assert await asyncio.gather(*(backend.store.begin(NOW).get(key) for key in keys)) == keys

    async def test_however_many_are_looked_up_each_has_what_is_its_own(self, tmp_path: Path) -> None:
        for count in (1, 2, 7, 8, 9, 127, 128, 129):
            keys = [state_key("contract", "shop", f"{number} of {count}") for number in range(count)]
            sets = [state_key("contract-set", "shop", f"{number} of {count}") for number in range(count)]
            async with self.backend(tmp_path) as backend:
                state = backend.store.begin(NOW)
                for key, a_set in zip(keys[::2], sets[::2], strict=True):  # the others do not exist
                    await state.put(key, key)
                    await state.push(a_set, f"{a_set} b", 1, keep=10)
                    await state.push(a_set, f"{a_set} a", 2, keep=10)
                await backend.store.commit(state)
            async with self.backend(tmp_path) as backend:
                state = backend.store.begin(NOW)
                await state.load(keys, sets)
                for index, (key, a_set) in enumerate(zip(keys, sets, strict=True)):
                    there = index % 2 == 0
                    assert await state.get(key) == (key if there else None)
                    assert await state.window(a_set) == ([(f"{a_set} b", 1), (f"{a_set} a", 2)] if there else [])

    async def test_released_entries_keep_their_changes_and_can_be_read_again(self, tmp_path: Path) -> None:
        read, read_set = state_key("contract", "shop", "read"), state_key("contract-set", "shop", "read")
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(read, "before")
            await state.push(read_set, "before", 1, keep=10)
            await backend.store.commit(state)
            for step in (False, True):
                state = backend.store.begin(NOW, step=step)
                for number in range(2):
                    await state.put(KEY, f"{step} {number}")
                    await state.push(OTHER, f"{step} {number}", 1, keep=10)
                    assert (await state.get(read), await state.window(read_set)) == ("before", [("before", 1)])
                    state.release([KEY, read], [OTHER, read_set])
                    assert await state.get(KEY) == f"{step} {number}"
                await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert (await state.get(KEY), await state.get(read)) == ("True 1", "before")
            assert [member for member, _ in await state.window(OTHER)] == ["False 0", "False 1", "True 0", "True 1"]

    async def test_a_scan_finds_all_values_of_a_kind_and_of_no_other(self, tmp_path: Path) -> None:
        wanted = {state_key("contract", "shop", f"{number}"): f"value {number}" for number in range(2500)}
        others = {f"{kind}:{key_digest('shop', 'visitor')}": kind for kind in ("contrac", "contract-2", "contracts")}
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            for key, value in {**wanted, **others}.items():
                await state.put(key, value)
            await state.merge(KEY, {"plan": Field(1, "gold")})
            await state.put(OTHER, "deleted")
            await state.delete(OTHER)
            await backend.store.commit(state)
            found = [entry async for entry in backend.store.scan("contract")]
            assert len(found) == len(wanted)
            assert dict(found) == wanted
            assert [entry async for entry in backend.store.scan("nothing")] == []

    async def test_after_a_discard_the_unit_is_over_and_the_store_goes_on(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "durable")
            await backend.store.commit(state)
            failed = backend.store.begin(NOW)
            await failed.put(KEY, "undone")
            backend.store.discard(failed)
            assert await backend.store.begin(NOW).get(KEY) == "durable"
            failed = backend.store.begin(NOW)
            await failed.delete(KEY)
            await failed.push(MEMBERS, "undone", NOW, keep=10)
            backend.store.discard(failed)
            state = backend.store.begin(NOW)
            assert (await state.get(KEY), await state.window(MEMBERS)) == ("durable", [])
            state = backend.store.begin(NOW)
            await state.put(KEY, "later")
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            assert await backend.store.begin(NOW).get(KEY) == "later"

    async def test_a_healthy_store_has_no_problem_and_describes_itself(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            assert backend.problem() is None
            findings = await backend.describe()
            assert "daemon" in {finding.name for finding in findings}
            assert not [finding for finding in findings if finding.status in {"unavailable", "broken"}]
