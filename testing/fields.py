"""The part of the store contract about entries with fields."""

from __future__ import annotations

from pathlib import Path

from ingestd.api.store import Field, Store, state_key

from .backends import KEY, NOW, OTHER, BackendContract

__all__ = ["FieldsContract"]


class FieldsContract(BackendContract):
    """The behaviour of entries whose fields are set one by one. `StoreContract` includes these tests."""

    async def test_of_each_field_the_newest_wins(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.merge(KEY, {"plan": Field(5, "gold"), "name": Field(5, "Ada")})
            await state.merge(KEY, {"plan": Field(4, "silver"), "name": Field(6, "Eve"), "city": Field(1, "Rome")})
            assert await state.fields(KEY) == {
                "plan": Field(5, "gold"),
                "name": Field(6, "Eve"),
                "city": Field(1, "Rome"),
            }
            await state.merge(KEY, {"plan": Field(5, "platinum")})
            assert (await state.fields(KEY))["plan"] == Field(5, "platinum"), "only a later field keeps its value"

    async def test_fields_without_a_life_stay_and_are_a_copy(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.merge(KEY, {"plan": Field(1, "gold")})
            await backend.store.commit(state)
            found = await backend.store.begin(NOW + 10**12).fields(KEY)
            assert found == {"plan": Field(1, "gold")}
            found.clear()
            assert await backend.store.begin(NOW).fields(KEY) == {"plan": Field(1, "gold")}

    async def test_fields_live_from_the_last_merge(self, tmp_path: Path) -> None:
        one, two = {"plan": Field(1, "gold")}, {"name": Field(2, "Ada")}
        for step, key in ((False, KEY), (True, OTHER)):
            async with self.backend(tmp_path) as backend:
                for at, fields, ttl in ((NOW, one, 1000), (NOW + 500, two, 800), (NOW + 600, one, 10)):
                    state = backend.store.begin(at, step=step)
                    await state.merge(key, fields, ttl=ttl)
                    await backend.store.commit(state)
            async with self.backend(tmp_path) as backend:
                assert await backend.store.begin(NOW + 1300).fields(key) == one | two
                late = NOW + 1301
                state = backend.store.begin(late, step=step)
                assert await state.fields(key) == {}
                await state.merge(key, {"city": Field(3, "Rome")}, ttl=1000)
                assert await state.fields(key) == {"city": Field(3, "Rome")}, "what has ended does not come back"
                await backend.store.commit(state)
            async with self.backend(tmp_path) as backend:
                assert await backend.store.begin(late + 1000).fields(key) == {"city": Field(3, "Rome")}
                assert await backend.store.begin(late + 1001).fields(key) == {}
                state = backend.store.begin(late, step=step)
                await state.merge(key, one)
                await state.merge(key, two, ttl=5)
                await backend.store.commit(state)
            async with self.backend(tmp_path) as backend:
                assert len(await backend.store.begin(late + 10**9).fields(key)) == 3, "it is for ever"

    async def test_entries_without_an_end_get_one(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            if type(backend.store).set_ends is Store.set_ends:
                return
            keys = {part: state_key("contract", "shop", part) for part in ("value", "fields", "ending", "gone")}
            foreign = state_key("contract-other", "shop", "value")
            state = backend.store.begin(NOW)
            for key in (keys["value"], foreign):
                await state.put(key, "x")
            await state.merge(keys["fields"], {"plan": Field(1, "gold")})
            await state.merge(keys["ending"], {"plan": Field(1, "gold")}, ttl=10_000)
            await backend.store.commit(state)
            await backend.store.set_ends("contract", lambda key: NOW + (500 if key == keys["value"] else 1000))
        async with self.backend(tmp_path) as backend:
            for after, there in ((500, (True, True)), (501, (False, True)), (1001, (False, False))):
                state = backend.store.begin(NOW + after)
                found = await state.get(keys["value"]) == "x", len(await state.fields(keys["fields"])) == 1
                assert found == there
                assert await state.fields(keys["ending"])
                assert await state.get(foreign) == "x"

    async def test_the_size_of_fields_is_known(self, tmp_path: Path) -> None:
        ttl = 10**11
        async with self.backend(tmp_path) as backend:
            before = await backend.store.size()
            if before is None:
                return
            assert before.fields == 0
            assert before.used > 0
            assert before.free <= before.capacity
            state = backend.store.begin(NOW)
            await state.merge(KEY, {"plan": Field(1, "é" * 5000), "name": Field(1, "Ada")}, ttl=ttl)
            await state.merge(OTHER, {"plan": Field(1, "x" * 10_000)})
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            size = await backend.store.size()
            assert size is not None
            assert 20_000 < size.fields < 40_000
            state = backend.store.begin(NOW + 1)
            await state.merge(KEY, {"plan": Field(2, "")}, ttl=2 * ttl)
            await backend.store.commit(state)
            size = await backend.store.size()
            assert size is not None
            assert 10_000 < size.fields < 20_000
            state = backend.store.begin(NOW + 1, step=True)
            await state.merge(KEY, {"plan": Field(3, "x" * 5000)}, keep=1, ttl=ttl)
            await state.delete(OTHER)
            await backend.store.commit(state)
            size = await backend.store.size()
            assert size is not None
            assert 5000 < size.fields < 10_000
            state = backend.store.begin(NOW + 1)
            await state.delete(KEY)
            await backend.store.commit(state)
            size = await backend.store.size()
            assert size is not None
            assert size.fields == 0

    async def test_an_entry_never_holds_both_a_value_and_fields(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "value")
            await state.merge(KEY, {"plan": Field(1, "gold")})
            assert await state.get(KEY) is None or not await state.fields(KEY)
            await state.merge(OTHER, {"plan": Field(1, "gold")})
            await state.put(OTHER, "value")
            assert await state.get(OTHER) is None or not await state.fields(OTHER)

    async def test_beyond_its_bounds_an_entry_loses_its_oldest_fields(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            for step, key in ((False, KEY), (True, OTHER)):
                state = backend.store.begin(NOW, step=step)
                assert await state.merge(key, {name: Field(5, "x") for name in "dbac"}) == 0, "without bounds all stay"
                assert await state.merge(key, {"e": Field(6, "x")}, keep=4) == 1
                assert {*await state.fields(key)} == {*"bcde"}, "of fields of the same time the first name goes"
                assert await state.merge(key, {"b": Field(7, "x"), "old": Field(4, "x")}, keep=4) == 1
                assert {*await state.fields(key)} == {*"bcde"}
                assert await state.merge(key, {"é": Field(8, "🛒")}, keep_size=9) == 3, "bytes, not characters"
                whole = {"b": Field(7, "x"), "é": Field(8, "🛒")}
                assert await state.fields(key) == whole
                await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            for step, key in ((False, KEY), (True, OTHER)):
                state = backend.store.begin(NOW, step=step)
                assert await state.fields(key) == whole
                assert await state.merge(key, {"b": Field(7, "xyz")}, keep_size=10) == 0, "another value has its size"
                assert await state.merge(key, {"f": Field(9, "x")}, keep=2, keep_size=8) == 1
                assert await state.merge(key, {"b": Field(0, "x")}, keep=2, keep_size=8) == 1, "the new one is oldest"
                assert {*await state.fields(key)} == {"é", "f"}
                assert await state.merge(key, {"g": Field(9, "x" * 20)}, keep_size=20) == 3, "it exceeds the bound"
                assert await state.fields(key) == {}
                await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            for key in (KEY, OTHER):
                assert await backend.store.begin(NOW).fields(key) == {}

    async def test_a_bound_counts_for_fields_that_were_there_before_it(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.merge(KEY, {f"{999 - number}": Field(number, "x") for number in range(300)})
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert await state.merge(KEY, {}, keep=10) == 0, "nothing is merged"
            assert await state.merge(KEY, {"new": Field(300, "x")}, keep=10) == 291
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert {*await state.fields(KEY)} == {*(f"{999 - number}" for number in range(291, 300)), "new"}

    async def test_fields_that_were_deleted_or_replaced_never_come_back(self, tmp_path: Path) -> None:
        ways = [(step, name, commits) for step in (False, True) for name in ("delete", "put") for commits in (0, 1)]
        keys = [state_key("contract", "shop", str(way)) for way in ways]
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            for key in keys:
                await state.merge(key, {"plan": Field(5, "gold"), "name": Field(5, "Ada")})
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            for key, (step, name, commits) in zip(keys, ways, strict=True):
                state = backend.store.begin(NOW, step=step)
                await (state.delete(key) if name == "delete" else state.put(key, "value", 1000))
                assert await state.fields(key) == {}
                if commits:
                    await backend.store.commit(state)
                    state = backend.store.begin(NOW, step=step)
                await state.merge(key, {"plan": Field(1, "silver")})
                await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            for key in keys:
                assert await backend.store.begin(NOW).fields(key) == {"plan": Field(1, "silver")}
                assert await backend.store.begin(NOW).get(key) is None

    async def test_merging_nothing_changes_nothing(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.put(KEY, "value")
            await state.merge(KEY, {})
            assert await state.get(KEY) == "value"
