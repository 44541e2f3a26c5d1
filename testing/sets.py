"""The part of the store contract about sets."""

from __future__ import annotations

from pathlib import Path

from .backends import KEY, NOW, OTHER, BackendContract

__all__ = ["SetsContract"]


class SetsContract(BackendContract):
    """The behaviour of sets whose members have times. `StoreContract` includes these tests."""

    async def test_a_set_has_each_member_once_in_the_order_of_times(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            for member, at in (("b", 2), ("a", 3), ("c", 1), ("b", 4), ("d", 3)):
                await state.push(KEY, member, at, keep=100)
            whole = [("c", 1), ("a", 3), ("d", 3), ("b", 4)]
            assert await state.window(KEY) == whole
            assert await state.window(KEY, 3) == whole[1:]
            assert await state.window(KEY, None, 3) == whole[:3]
            assert await state.window(KEY, 3, 3) == whole[1:3]
            assert await state.window(OTHER) == []
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.load([OTHER], [KEY])
            assert await state.window(KEY) == whole

    async def test_a_set_keeps_so_many_and_those_since_a_time(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            for at in (5, 3, 1, 4, 2, 6):
                await state.push(KEY, str(at), at, keep=3)
                await state.push(OTHER, str(at), at, keep=3, first=True)
            assert await state.window(KEY) == [("4", 4), ("5", 5), ("6", 6)]
            assert await state.window(OTHER) == [("1", 1), ("5", 5), ("6", 6)]
            await state.push(KEY, "7", 7, keep=100, since=6)
            assert await state.window(KEY) == [("6", 6), ("7", 7)]
            await state.push(KEY, "too late", 1, keep=100, since=6)
            assert await state.window(KEY) == [("6", 6), ("7", 7)]
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert await state.window(KEY) == [("6", 6), ("7", 7)]
            assert await state.window(OTHER) == [("1", 1), ("5", 5), ("6", 6)]

    async def test_members_are_taken_out_and_a_set_is_deleted(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            for key in (KEY, OTHER):
                await state.push(key, "a", 1, keep=9)
                await state.push(key, "b", 2, keep=9)
            await backend.store.commit(state)
            await state.pull(KEY, ["a", "never there"])
            await state.delete(OTHER)
            assert (await state.window(KEY), await state.window(OTHER)) == ([("b", 2)], [])
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            assert (await state.window(KEY), await state.window(OTHER)) == ([("b", 2)], [])

    async def test_a_set_is_over_when_the_longest_life_in_it_is(self, tmp_path: Path) -> None:
        async with self.backend(tmp_path) as backend:
            state = backend.store.begin(NOW)
            await state.push(KEY, "a", 1, keep=9, ttl=1000)
            await state.push(KEY, "b", 2, keep=9, ttl=500)
            await state.push(OTHER, "a", 1, keep=9)
            await state.push(OTHER, "b", 2, keep=9, ttl=500)
            await backend.store.commit(state)
        async with self.backend(tmp_path) as backend:
            late = backend.store.begin(NOW + 1001)
            assert ("a", 1) in await backend.store.begin(NOW + 1000).window(KEY)
            assert await late.window(KEY) == []
            assert ("a", 1) in await late.window(OTHER)
            await late.push(KEY, "c", 3, keep=9, ttl=1000)
            assert await late.window(KEY) == [("c", 3)]
            await backend.store.commit(late)
