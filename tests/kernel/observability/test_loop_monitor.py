"""The holder of the event loop is named. Nobody is blamed for delays by the machine or the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pluggy
import pytest

from ingestd.api import hookimpl, hookspecs
from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Endpoint, Event, Record, Session
from ingestd.api.hookspecs import HOOK_NAMESPACE
from ingestd.api.options import Options
from ingestd.api.sink import Sink
from ingestd.delivery import SinkConsumer
from ingestd.delivery.options import SinkOptions
from ingestd.hooks.caller import Hooks
from ingestd.observability.loop_holder import Holder, find_holder, plugin_modules
from ingestd.observability.loop_monitor import HoldLog, LoopMonitor

LONG = 0.25  # seconds: well over the threshold, because the machine may be busy
EVENT = Event(
    id="e", type="event", tenant="shop", endpoint=Endpoint.TRACK, received_at=0, timestamp=0, key="Page View",
    data={}, traits={}, anonymous_id="a", user_id=None, session_id=None, session_is_new=False, dispatch_id=None,
    message_id=None, context={}, extra={},
)  # fmt: skip
TANGLED = re.compile(r"(a+)+$")


def compute(seconds: float) -> None:
    """Python code that does not sleep."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def block(seconds: float) -> None:
    time.sleep(seconds)


def collect(seconds: float) -> None:
    """Run the garbage collector repeatedly, because the duration of one run depends on the machine."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        gc.collect()


def hold_everything(seconds: float) -> None:
    """Calls into C that let no other thread run."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        TANGLED.match("a" * 22 + "b")


class Shop:
    """A plugin whose hooks call `work`."""

    def __init__(self) -> None:
        self.work: Any = lambda seconds: None

    @hookimpl
    def authenticate(self) -> None:
        self.work(LONG)

    @hookimpl
    async def enrich(self) -> None:
        await asyncio.sleep(0)
        self.work(LONG)

    @hookimpl
    async def resolve_session(self, event: Any, state: Any) -> Session:
        self.work(LONG)
        return Session("s", is_new=False)

    @hookimpl
    def check_identity(self) -> None:
        self.work(LONG)

    @hookimpl
    def prepare(self) -> None:
        self.work(LONG)

    @hookimpl
    async def show_panel(self) -> None:
        self.work(LONG)

    @hookimpl
    def shutdown(self) -> None:
        self.work(LONG)

    async def look_around(self) -> None:
        self.work(LONG)


class Slow(Sink):
    async def write(self, batch: Sequence[Record]) -> None:
        self.settle()

    def settle(self) -> None:
        time.sleep(LONG)


class Receipts(Consumer):
    name = "shop:receipts"

    async def process(self, records: Sequence[Record], step: Step) -> None:
        block(LONG)


class Watched:
    """A monitor of the event loop. `held` has the holders with the seconds."""

    def __init__(self) -> None:
        self.held: list[tuple[str, float]] = []
        self.delays: asyncio.Queue[float] = asyncio.Queue()
        self.monitor = LoopMonitor(
            lambda: {__name__: "shop"},
            lambda name, seconds: self.held.append((name, seconds)),
            self.delays.put_nowait,
        )


async def settle() -> None:
    """Give the monitor time to look at the loop."""
    await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[Watched]:
    watched = Watched()
    task = asyncio.create_task(watched.monitor.run())
    await asyncio.sleep(0.1)
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(scope="module")
def shop() -> tuple[Shop, Hooks]:
    manager = pluggy.PluginManager(HOOK_NAMESPACE)
    manager.add_hookspecs(hookspecs)
    plugin = Shop()
    manager.register(plugin, "shop_tools")
    return plugin, Hooks(manager)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "ingestd.loop"]


@pytest.mark.logs("^ingestd.loop WARNING plugin shop_tools held the event loop")
async def test_a_hook_that_holds_the_loop_is_named_with_its_plugin(
    shop: tuple[Shop, Hooks], caplog: pytest.LogCaptureFixture
) -> None:
    plugin, hooks = shop
    anything: Any = None

    async def check_identity() -> None:
        hooks.check_identity(anything)

    async def prepare() -> None:
        assert hooks.prepare is not None
        hooks.prepare(EVENT, anything)

    async with watching() as watched:
        calls: list[tuple[str, Callable[[float], None], Callable[[], Awaitable[object]]]] = [
            ("enrich", time.sleep, lambda: hooks.enrich(anything, anything)),
            ("authenticate", compute, lambda: hooks.authenticate(anything)),
            ("resolve_session", hold_everything, lambda: hooks.resolve_session(anything, anything)),
            ("check_identity", time.sleep, check_identity),
            ("prepare", time.sleep, prepare),
            ("show_panel", time.sleep, lambda: hooks.show_panel(anything, {})),
            ("shutdown", time.sleep, hooks.shutdown),
        ]
        for hook, work, call in calls:
            watched.held.clear()
            watched.monitor._holds = HoldLog()
            plugin.work = work
            await call()
            await settle()
            ((name, seconds),) = watched.held
            assert name == "shop_tools"
            assert seconds >= 0.1
            assert re.fullmatch(
                rf"plugin shop_tools held the event loop for \d\.\d\d s in {hook} \({__name__}, line \d+\), and"
                r" everything else waited; holds lately: 1",
                warnings(caplog)[-1],
            )


@pytest.mark.logs("^ingestd.loop WARNING")
async def test_a_sink_a_consumer_a_task_and_a_timer_are_named(caplog: pytest.LogCaptureFixture) -> None:
    sink = Slow("crm", Options())
    anything: Any = None
    records = [Record("event", 0, b"{}", 1)]
    plugin = Shop()
    plugin.work = time.sleep
    async with watching() as watched:
        await SinkConsumer(sink, SinkOptions(type="slow")).prepare(records)
        await settle()
        asyncio.get_running_loop().call_later(0, sink.settle)
        await settle()
        await Receipts().process(records, anything)
        await settle()
        await asyncio.create_task(plugin.look_around())
        await settle()
    assert [name for name, _ in watched.held] == ["sink:crm", "sink:crm", "shop:receipts", "shop"]
    functions = [re.findall(r" in (\w+) \(", line)[0] for line in warnings(caplog)]
    assert functions == ["write", "settle", "process", "look_around"]


async def test_holds_by_ingestd_itself_are_measured_and_counted_and_not_logged() -> None:
    async with watching() as watched:
        asyncio.get_running_loop().call_soon(time.sleep, LONG)
        await settle()
        delays = [await watched.delays.get() for _ in range(5)]
    assert [name for name, _ in watched.held] == ["ingestd"]
    assert min(delays) >= 0
    assert max(delays) >= LONG - 0.1


async def test_holds_by_the_garbage_collector_are_named_gc(shop: tuple[Shop, Hooks]) -> None:
    plugin, hooks = shop
    anything: Any = None
    objects: list[Any] = [[number] for number in range(500_000)]
    plugin.work = collect
    gc.disable()
    try:
        async with watching() as watched:
            await hooks.enrich(anything, anything)
            await settle()
    finally:
        gc.enable()
    assert [name for name, _ in watched.held] == ["gc"]
    del objects


async def test_many_short_calls_are_no_hold_of_a_plugin(shop: tuple[Shop, Hooks]) -> None:
    """A hook is called for sixty events in one turn of the loop. No single call holds the loop."""
    plugin, hooks = shop
    anything: Any = None
    plugin.work = lambda seconds: compute(0.005)
    async with watching() as watched:
        for _ in range(60):
            hooks.check_identity(anything)
        await settle()
    assert {name for name, _ in watched.held} <= {"ingestd"}


@pytest.mark.logs("held the event loop")
def test_of_many_holds_the_1st_2nd_4th_and_8th_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    holds = HoldLog()
    frame = inspect.currentframe()
    assert frame is not None
    for second in range(40):
        for name in ("one", "other"):
            holds.report(Holder(name, name, "write", "shop", 1, frame), 0.2, second)
    told = [line.rpartition(": ")[2] for line in warnings(caplog) if line.startswith("one")]
    assert told == ["1", "2", "4", "8", "16", "32"]
    holds.report(Holder("one", "one", "write", "shop", 1, frame), 0.2, 1000)
    assert warnings(caplog)[-1].endswith(": 1")


def test_modules_belong_to_plugins_by_their_entry_points() -> None:
    class Loaded(NamedTuple):
        name: str
        source: str

    modules = plugin_modules([
        Loaded("session", "ingestd.plugins.session:SessionPlugin"),
        Loaded("prices", "shop_tools.prices:Prices"),
        Loaded("taxes", "shop_tools.taxes"),
    ])  # fmt: skip
    assert modules == {
        "ingestd.plugins.session": "session",
        "shop_tools.prices": "prices",
        "shop_tools": "prices",
        "shop_tools.taxes": "taxes",
    }


def test_a_consumer_that_is_being_made_has_no_name_yet() -> None:
    class Making(Consumer):
        def __init__(self) -> None:
            self.holder = find_holder(inspect.currentframe(), {})

        async def process(self, records: Sequence[Record], step: Step) -> None: ...

    assert Making().holder is None
