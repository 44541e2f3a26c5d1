"""A copy between any numbers of partitions keeps each tenant's records, and what each consumer has not read."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.contents import Entry
from ingestd.api.errors import CommandError
from ingestd.api.events import Record
from ingestd.api.store import Field, state_key
from ingestd.api.times import now
from ingestd.config import parse_config
from ingestd.delivery.batch_plan import BATCH_PLAN, BatchPlan
from ingestd.delivery.dead_letters import DeadLetter, read_letters, save_dead_letter
from ingestd.delivery.operator_commands import Discard, give_command
from ingestd.delivery.progress import PROGRESS, Progress
from ingestd.hooks.loader import load_plugins
from ingestd.plugins.tools.journal_reading import records_of
from ingestd.plugins.tools.moving.comparison import compare_regrouped
from ingestd.plugins.tools.moving.regrouped_copy import RegroupedCopy
from ingestd.plugins.tools.moving.sides import Side, open_sides
from ingestd.plugins.tools.moving.store_copy import set_cursors
from ingestd.storage.placements import index_of_tenant
from tests.support.examples import examples
from tests.support.partitioned_backend import PartitionedBackend

PLUGINS = load_plugins(parse_config({}, source="defaults", base=Path.cwd()))
TENANTS = [f"shop-{number}" for number in range(5)]
LAGGING, LEADING = "sink:lagging", "sink:leading"


class Killed(BaseException):
    """The end of a process, between two commits."""


class Case(NamedTuple):
    sources: int
    targets: int
    tenants: list[int]
    """The tenants of the records, in their order."""
    later: list[int]
    """The tenants of the records that come after the preparation."""
    read: float
    """The part of the records that the lagging consumer has read."""
    kills: list[int]
    """After how many commits each run is killed."""


CASES = st.builds(
    Case,
    sources=st.integers(1, 3),
    targets=st.integers(1, 3),
    tenants=st.lists(st.integers(0, 4), min_size=10, max_size=40),
    later=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    read=st.floats(0, 1),
    kills=st.lists(st.integers(0, 12), min_size=4, max_size=6),
).filter(lambda case: case.sources != case.targets)


@asynccontextmanager
async def opened(folder: Path, name: str, count: int) -> AsyncIterator[Sequence[Side]]:
    async with open_sides("--to", f"files:{name}", PartitionedBackend(folder / f"{name}.db", count)) as sides:
        yield sides


class Shop:
    """Records, cursors, state and dead letters of several tenants, as daemons would write them."""

    def __init__(self, source: Sequence[Side]) -> None:
        self.source = source
        self.bodies: dict[str, list[bytes]] = {}
        self._number = 0

    async def append(self, tenants: Sequence[int]) -> None:
        records: dict[int, list[Record]] = {}
        touches: dict[int, list[Entry]] = {}
        for number in tenants:
            self._number += 1
            tenant, visitor = TENANTS[number], f"visitor-{self._number}"
            body = json.dumps({"id": f"{self._number}", "tenant": tenant, "anonymousId": visitor}).encode()
            index = index_of_tenant(tenant, len(self.source))
            records.setdefault(index, []).append(Record("event", self._number, body))
            touch = Entry(state_key("touches", tenant, visitor), members={"touch": self._number})
            touches.setdefault(index, []).append(touch)
            self.bodies.setdefault(tenant, []).append(body)
        for index, some in records.items():
            side = self.source[index]
            await side.journal.commit(some, side.store.begin(now()))
            await side.contents.replace(touches[index])

    async def read(self, part: float) -> None:
        """Move the cursors."""
        for side in self.source:
            last = await side.journal.last()
            await set_cursors(side, {LAGGING: int(part * last), LEADING: last, "attribution": last})

    async def give_up(self) -> None:
        """Each partition has a dead letter of its first record, and has delivered the rest."""
        for side in self.source:
            last = await side.journal.last()
            state = side.store.begin(now())
            progress = Progress(0, delivered=last)
            async for record in records_of(side.journal, 0, 1):
                progress = Progress(0, delivered=last - 1, given_up=1, letters=1, command=7)
                letter = DeadLetter(1, "no", 1, 1, "event", record.position, record.at, msgspec.Raw(record.body))
                await save_dead_letter(state, "leading", letter)
            await PROGRESS.save(state, progress, "leading")
            await side.store.commit(state)

    async def left(self, sides: Sequence[Side], consumer: str) -> dict[str, list[bytes]]:
        """The records of each tenant that a consumer has not read."""
        left: dict[str, list[bytes]] = {}
        for side in sides:
            (position,) = [each.position for each in await side.journal.cursors() if each.name == consumer]
            async for record in records_of(side.journal, position, await side.journal.last()):
                left.setdefault(record.envelope().tenant or "", []).append(record.body)
        return left


async def state_of(sides: Sequence[Side]) -> Counter[bytes]:
    return Counter(
        [
            entry.digest()
            for side in sides
            async for some in side.contents.entries()
            for entry in some
            if not entry.key.startswith(("sink-", "dead-letter", "store-copy"))
        ]
    )


def killed_after(commits: int, sides: Sequence[Side]) -> None:
    """Let the next run be killed after so many commits. Each side is opened again afterwards."""

    def limited(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            nonlocal commits
            if commits == 0:
                raise Killed
            commits -= 1
            return await method(*arguments)

        return call

    for side in sides:
        for owner, name in ((side.journal, "commit"), (side.contents, "replace"), (side.store, "commit")):
            setattr(owner, name, limited(getattr(owner, name)))


async def unchanged() -> bool:
    return True


async def copied(source: Sequence[Side], folder: Path, case: Case, kills: list[int], *, prepare: bool) -> int:
    """Run the copy until it ends. Returns how often it was killed."""
    for killed in count():
        async with opened(folder, "target", case.targets) as target:
            if kills:
                killed_after(kills.pop(), target)
            with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
                try:
                    if prepare:
                        await run.prepare()
                    else:
                        await run.finish(unchanged, leave_unknown=False)
                except Killed:
                    continue
                return killed
    raise AssertionError("the copy never ends")


@given(CASES)
@examples(25)
def test_nothing_is_lost_or_repeated_between_any_numbers_of_partitions(case: Case) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(move(Path(folder), case, case.kills[:2], case.kills[2:]))


@pytest.mark.parametrize(("sources", "targets"), [(1, 2), (2, 1), pytest.param(2, 3, marks=pytest.mark.long)])
async def test_a_copy_continues_after_a_kill_before_each_of_its_commits(
    sources: int, targets: int, tmp_path: Path
) -> None:
    case = Case(sources, targets, [0, 1, 2, 3, 4] * 2, [4, 3, 2, 1, 0], 0.5, [])
    for commits in count():
        folder = tmp_path / f"{commits}"
        folder.mkdir()
        if not await move(folder, case, [commits], [commits]):
            assert commits > 3 * targets
            return


async def move(folder: Path, case: Case, preparing: list[int], finishing: list[int]) -> int:
    """Copy in two runs, each killed after these numbers of commits, and check the copy. Returns the number of kills."""
    async with opened(folder, "source", case.sources) as source:
        shop = Shop(source)
        await shop.append(case.tenants)
        await shop.read(case.read)
        kills = await copied(source, folder, case, preparing, prepare=True)
        await shop.append(case.later)
        await shop.give_up()
        await shop.read(case.read)
        kills += await copied(source, folder, case, finishing, prepare=False)
        async with opened(folder, "target", case.targets) as target:
            await check(shop, source, target)
    return kills


async def check(shop: Shop, source: Sequence[Side], target: Sequence[Side]) -> None:
    highest = max([await side.journal.last() for side in source])
    bodies: dict[str, list[bytes]] = {}
    for index, side in enumerate(target):
        async for record in records_of(side.journal, 0, await side.journal.last()):
            assert record.position > highest
            tenant = record.envelope().tenant or ""
            assert index_of_tenant(tenant, len(target)) == index
            bodies.setdefault(tenant, []).append(record.body)
    assert bodies == shop.bodies
    for consumer in (LAGGING, LEADING, "attribution"):
        assert await shop.left(target, consumer) == await shop.left(source, consumer)
    assert await state_of(target) == await state_of(source)
    await compare_regrouped(source, target, PLUGINS)
    assert await counts_of(target) == await counts_of(source)
    for side in target:
        progress = await PROGRESS.load(side.store.begin(now()), "leading")
        assert progress is not None
        assert await give_command(side.store, "leading", Discard(last=0)) > progress.command


async def counts_of(sides: Sequence[Side]) -> tuple[int, int, int, list[bytes]]:
    """Of the leading sink: delivered and given up, the records that are neither, and the bodies of dead letters."""
    delivered = given_up = open_ = 0
    letters = []
    for side in sides:
        state = side.store.begin(now())
        progress = await PROGRESS.load(state, "leading")
        assert progress is not None
        (position,) = [each.position for each in await side.journal.cursors() if each.name == LEADING]
        delivered, given_up = delivered + progress.delivered, given_up + progress.given_up
        open_ += position - progress.began - progress.delivered - progress.given_up
        found = [letter async for letter in read_letters(state, "leading", 0, progress.letters)]
        assert len(found) == progress.dead
        letters += [bytes(letter.record) for letter in found]
    return delivered, given_up, open_, sorted(letters)


@asynccontextmanager
async def two_and_one(tmp_path: Path) -> AsyncIterator[tuple[Shop, Sequence[Side], Sequence[Side]]]:
    """A store with two partitions that has records in both, and an empty one with a single partition."""
    async with opened(tmp_path, "source", 2) as source, opened(tmp_path, "target", 1) as target:
        shop = Shop(source)
        await shop.append([0, 1, 2, 3, 4] * 2)
        await shop.read(0)
        yield shop, source, target


async def refused(source: Sequence[Side], target: Sequence[Side]) -> str:
    """Why the last run of a copy has failed."""
    with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run, pytest.raises(CommandError) as error:
        await run.finish(unchanged, leave_unknown=False)
    return str(error.value)


async def test_two_consumers_that_lag_in_different_partitions(tmp_path: Path) -> None:
    async with two_and_one(tmp_path) as (shop, source, target):
        await shop.read(1)
        await set_cursors(source[0], {LAGGING: 1})
        await set_cursors(source[1], {LEADING: 1})
        told = await refused(source, target)
        assert "in one partition and is ahead of it in another one" in told
        assert {LAGGING, LEADING} <= {*told.replace(",", " ").split()}
        await set_cursors(source[0], {LAGGING: await source[0].journal.last()})
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.finish(unchanged, leave_unknown=False)


async def test_consumers_that_begin_after_the_preparation(tmp_path: Path) -> None:
    async with two_and_one(tmp_path) as (shop, source, target):
        await shop.read(1)
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.prepare()
        await set_cursors(source[0], {"sink:new": 0})
        assert "sink:new has no cursor in partition 1" in await refused(source, target)
        await set_cursors(source[1], {"sink:new": 0})
        assert "has records that sink:new has not read; start the daemon" in await refused(source, target)


async def test_a_sink_with_work_that_is_not_done(tmp_path: Path) -> None:
    async with two_and_one(tmp_path) as (shop, source, target):
        await shop.read(0.5)
        last = await source[1].journal.last()
        state = source[1].store.begin(now())
        await BATCH_PLAN.save(state, BatchPlan(last, last, 1), "lagging")
        await source[1].store.commit(state)
        assert "sink lagging has begun a batch; let a daemon finish it" in await refused(source, target)
        await give_command(source[0].store, "lagging", Discard(last=0))
        assert "sink lagging has a command that is not done; let a daemon finish it" in await refused(source, target)


async def test_more_new_records_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.tools.moving.regrouped_copy._MARGIN", 3)
    async with two_and_one(tmp_path) as (shop, source, target):
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.prepare()
        await shop.append([0, 1, 2, 3, 4] * 4)
        told = await refused(source, target)
        assert "has too many new records since the copy was begun; begin with an empty target" in told


async def test_a_target_that_was_begun_from_another_number_of_partitions(tmp_path: Path) -> None:
    async with two_and_one(tmp_path) as (_, source, target):
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.prepare()
    async with opened(tmp_path, "source", 3) as more, opened(tmp_path, "target", 1) as target:
        await set_cursors(more[2], dict.fromkeys([LAGGING, LEADING, "attribution"], 0))
        assert "when it had another number of partitions; begin with an empty target" in await refused(more, target)


async def test_entries_that_several_partitions_have(tmp_path: Path) -> None:
    rollup = state_key("attribution-rollup-all", "", "day:1")
    row = [7, "mail", "EUR", [1.0], [40.0], [0.0]]
    soon, later = now() + 60_000, now() + 3_600_000
    passing, counted = state_key("session", "gone", "visitor"), state_key("shop-tools", "", "")
    async with two_and_one(tmp_path) as (_, source, target):
        for side, expires in zip(source, (later, soon), strict=True):
            rollups = Entry(rollup, json.dumps([row]), expires=later)
            await side.contents.replace([rollups, Entry(passing, f"until {expires}", expires=expires)])
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.prepare()
            found, session = await target[0].contents.find([Entry(rollup), Entry(passing)])
        assert found is not None
        assert session is not None
        assert json.loads(found.value or "") == [[7, "mail", "EUR", [2.0], [80.0], [0.0]]]
        assert session.value == f"until {later}"
        for number, side in enumerate(source):
            await side.contents.replace([Entry(counted, fields={"count": Field(1, f"{number}")})])
        assert "no plugin merges entries of the kind shop-tools" in await refused(source, target)
        for side in source:
            await side.contents.remove([Entry(counted)])
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.finish(unchanged, leave_unknown=False)
        await compare_regrouped(source, target, PLUGINS)


async def test_what_differs_is_named(tmp_path: Path) -> None:
    async with two_and_one(tmp_path) as (_, source, target):
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.finish(unchanged, leave_unknown=False)
        lasting = Entry(state_key("link", "shop-0", "visitor"), "|user")
        for side, words in ((target[0], "is not in the source"), (source[0], "is missing")):
            await side.contents.replace([lasting])
            with pytest.raises(CommandError, match=f"in entries of link: {lasting.key} {words}"):
                await compare_regrouped(source, target, PLUGINS)
            await side.contents.remove([lasting])
        await set_cursors(target[0], {LAGGING: await target[0].journal.last()})
        with pytest.raises(CommandError, match=f"in the cursors of {LAGGING}"):
            await compare_regrouped(source, target, PLUGINS)
        await source[0].journal.commit([Record("event", 1, b'{"tenant":"shop-0"}')], source[0].store.begin(now()))
        with pytest.raises(CommandError, match="has another record than"):
            await compare_regrouped(source, target, PLUGINS)


async def test_a_consumer_that_has_a_cursor_on_one_side_alone_is_named(tmp_path: Path) -> None:
    """It has read everything there. On the other side it would begin anew."""
    async with two_and_one(tmp_path) as (_, source, target):
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.finish(unchanged, leave_unknown=False)
        for sides, name in ((source, "sink:source"), (target, "sink:target")):
            for side in sides:
                await side.journal.ensure_cursor(name, "now")
        with pytest.raises(CommandError, match="in the cursors of sink:source, sink:target"):
            await compare_regrouped(source, target, PLUGINS)


async def test_records_that_the_source_removes_or_blanks_after_the_preparation(tmp_path: Path) -> None:
    async with two_and_one(tmp_path) as (shop, source, target):
        await shop.read(1)
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.prepare()
        last = await source[0].journal.last()
        await source[0].journal.trim(1, 1)
        (record,) = await source[0].journal.read(last - 1, 1)
        blanked = json.dumps({"id": record.envelope().id, "tenant": record.envelope().tenant}).encode()
        await source[0].journal.replace([(record, blanked)])
        erasure = json.dumps({"tenant": record.envelope().tenant}).encode()
        await source[0].journal.commit([Record("erasure", now(), erasure)], source[0].store.begin(now()))
        with closing(RegroupedCopy(source, target, PLUGINS, quiet=True)) as run:
            await run.finish(unchanged, leave_unknown=False)
        found = [each.body async for each in records_of(target[0].journal, 0, await target[0].journal.last())]
        assert blanked in found
        assert record.body not in found
        await compare_regrouped(source, target, PLUGINS)
