"""Mistakes of plugin authors. The last line of a failed start names the plugin and the cure."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ingestd.api.errors import ConfigError
from ingestd.config import parse_config
from ingestd.delivery import make_sink_consumer
from ingestd.hooks.loader import load_plugins
from tests.support.distribution import write_distribution

MODULE = """
import asyncio
import functools
from ingestd.api import hookimpl
from ingestd.api.consumer import Consumer
from ingestd.api.options import Options
from ingestd.api.sink import Sink

class ShopSink(Sink):
    async def write(self, batch):
        pass

@hookimpl
def register_sinks(register):
    register("shop", ShopSink)
"""
INTAKE = f"""{MODULE}
from ingestd.api.events import Endpoint
from ingestd.api.intake import Intake, Route
class Notes(Intake):
    endpoint = Endpoint("notes", is_public=True)
    routes = (Route("/n"),)
    def credential(self, request, body): pass
    def begin(self, request, principal, envelope, keys): pass
"""
REGISTER_NOTES = "@hookimpl\ndef register_intakes(register): register(Notes())"
WRITE = "    async def write(self, batch):\n        pass\n"
PLUGIN = "plugin shop (shop-plugins 1.0)"
SINK = "plugin shop: sink type shop"
OUT = "x.toml: sinks.out"
INIT = "\n    def __init__(self, name, options):\n        "
SUPER = "call super().__init__(name, options) first in ShopSink.__init__"


def sink(body: str) -> str:
    """The module with this body of its sink class."""
    return MODULE.replace(WRITE, body.strip("\n") + "\n")


def plugin_class(body: str) -> str:
    return f"{MODULE}\nclass Shop:\n{body}\n    @hookimpl\n    def enrich(self, event):\n        pass\n"


MISTAKES = {
    # The sink's methods
    "no write": (sink("    pass"), "", f"{SINK}: ShopSink has no write; add `async def write(self, batch)`"),
    "a misspelt write": (
        sink("    async def wirte(self, batch): pass"), "", f"{SINK}: ShopSink has no write; rename wirte to write",
    ),
    "a write with a longer name": (
        sink("    async def write_all_records(self, batch): pass"),
        "",
        f"{SINK}: ShopSink has no write; rename write_all_records to write",
    ),
    "a plain write": (
        sink("    def write(self, batch): pass"),
        "",
        f"{SINK}: ShopSink.write is not a coroutine function; write `async def write(self, batch)`",
    ),
    "a write that is no function": (
        sink("    write = None"),
        "",
        f"{SINK}: ShopSink.write is not a coroutine function; write `async def write(self, batch)`",
    ),
    "a write that yields": (
        sink("    async def write(self, batch): yield"),
        "",
        f"{SINK}: ShopSink.write is a generator; take the yield out of `async def write(self, batch)`",
    ),
    "a write without its batch": (
        sink("    async def write(self): pass"),
        "",
        f"{SINK}: ShopSink.write must take (self, batch): too many positional arguments",
    ),
    "a write with an unexpected argument": (
        sink("    async def write(self, batch, step): pass"),
        "",
        f"{SINK}: ShopSink.write must take (self, batch): missing a required argument: 'step'",
    ),
    "a plain close": (
        sink(f"{WRITE}    def close(self): pass"),
        "",
        f"{SINK}: ShopSink.close is not a coroutine function; write `async def close(self)`",
    ),
    # Its options and its constructor
    "options of a sink that are no Options": (
        sink(f"    class Options:\n        path = ''\n{WRITE}"),
        "",
        f"{SINK}: ShopSink.Options is not a subclass of ingestd.api.options.Options; make it one",
    ),
    "options of an unknown type": (
        sink(f"    class Options(Options):\n        path: 'Paht'\n{WRITE}"),
        "",
        f"{SINK}: the types of ShopSink.Options cannot be read: NameError(\"name 'Paht' is not defined\");"
        " import them where the class is",
    ),
    "a constructor of a sink with too few arguments": (
        sink(f"    def __init__(self, options): pass\n{WRITE}"),
        "",
        f"{SINK}: ShopSink.__init__ must take (self, name, options): too many positional arguments",
    ),
    "a constructor without super": (
        sink(f"{WRITE}{INIT}self.rows = []"),
        "",
        f"{OUT}: sink type shop: pm_shop.ShopSink has no name and no options; {SUPER}",
    ),
    "a constructor that keeps the name alone": (
        sink(f"{WRITE}{INIT}self.name = name"), "", f"{OUT}: sink type shop: pm_shop.ShopSink has no options; {SUPER}",
    ),
    "a constructor that confuses the two": (
        sink(f"{WRITE}{INIT}super().__init__(options, name)"),
        "",
        f"{OUT}: sink type shop: pm_shop.ShopSink does not have the name it was given; {SUPER}, and keep sink.name",
    ),
    # What is registered
    "a sink that is no Sink": (
        MODULE.replace("(Sink)", ""),
        "",
        f"{SINK}: register a subclass of ingestd.api.sink.Sink, not pm_shop.ShopSink",
    ),
    "an instance of the sink": (
        MODULE.replace("ShopSink)", "ShopSink('shop', None))"),
        "",
        f"{SINK}: register a subclass of ingestd.api.sink.Sink, not the instance of pm_shop.ShopSink",
    ),
    "type and class confused": (
        MODULE.replace('"shop", ShopSink', 'ShopSink, "shop"'),
        "",
        'plugin shop: register takes the type of the sink and then its class, as in register("shop", ShopSink);'
        " the type given is pm_shop.ShopSink",
    ),
    "the class of a consumer": (
        f"{MODULE}\nclass Copies(Consumer): name = 'copies'\n"
        "@hookimpl\ndef register_consumers(register): register(Copies)",
        "",
        "plugin shop: register an instance, Copies(…), not the class Copies",
    ),
    "a consumer without a name": (
        f"{MODULE}\nclass Copies(Consumer):\n    async def process(self, records, step): pass\n"
        "@hookimpl\ndef register_consumers(register): register(Copies())",
        "",
        "plugin shop: the consumer Copies has no name; give it one that never changes",
    ),
    "a consumer that is plain": (
        f"{MODULE}\nclass Copies(Consumer):\n    name = 'copies'\n    def process(self, records, step): pass\n"
        "@hookimpl\ndef register_consumers(register): register(Copies())",
        "",
        "plugin shop: Copies.process is not a coroutine function; write `async def process(self, records, step)`",
    ),
    # The intake
    "the class of an intake": (
        f"{INTAKE}\n@hookimpl\ndef register_intakes(register): register(Notes)",
        "",
        "plugin shop: register an instance, Notes(…), not the class Notes",
    ),
    "an intake that is something else": (
        f"{INTAKE}\n@hookimpl\ndef register_intakes(register): register('notes')",
        "",
        "plugin shop: register an instance of a subclass of ingestd.api.intake.Intake, not a value of the type str",
    ),
    "an intake without an endpoint": (
        f"{INTAKE.replace('endpoint = ', 'end_point = ')}\n{REGISTER_NOTES}",
        "",
        "plugin shop: the intake Notes has no endpoint; add `endpoint = Endpoint(…)`",
    ),
    "an intake with the name of another endpoint": (
        f"{INTAKE.replace('notes', 'track')}\n{REGISTER_NOTES}",
        "",
        "plugin shop: the intake Notes: its endpoint 'track' is taken or is no name; expected lower-case letters,"
        " digits and hyphens",
    ),
    "an intake without routes": (
        f"{INTAKE.replace('routes = ', 'paths = ')}\n{REGISTER_NOTES}",
        "",
        "plugin shop: the intake Notes has no routes; set `routes`",
    ),
    # The entry point
    "the sink class as the entry point": (
        MODULE,
        "pm_shop:ShopSink",
        "plugin shop (shop-plugins 1.0, pm_shop:ShopSink): its entry point is the sink ShopSink itself; name the module"
        ' instead, shop = "pm_shop", and register the class there in register_sinks',
    ),
    "a sink as the entry point": (
        f"{MODULE}\nsink = ShopSink('shop', None)",
        "pm_shop:sink",
        "plugin shop (shop-plugins 1.0, pm_shop:sink): its entry point is the sink ShopSink itself; name the module"
        ' instead, shop = "pm_shop", and register the class there in register_sinks',
    ),
    "the function as the entry point": (
        MODULE,
        "pm_shop:register_sinks",
        "plugin shop (shop-plugins 1.0, pm_shop:register_sinks): its entry point is the function register_sinks; name"
        ' the module instead, shop = "pm_shop"',
    ),
    "options of a plugin that are no Options": (
        plugin_class("    class Options:\n        path = ''"),
        "pm_shop:Shop",
        "plugin shop (shop-plugins 1.0, pm_shop:Shop): Shop.Options is not a subclass of ingestd.api.options.Options;"
        " make it one",
    ),
    "options of a plugin that are no class": (
        plugin_class("    Options = {'path': str}"),
        "pm_shop:Shop",
        "plugin shop (shop-plugins 1.0, pm_shop:Shop): Shop.Options is not a subclass of ingestd.api.options.Options;"
        " make it one",
    ),
    "a plugin that does not take its options": (
        plugin_class("    class Options(Options): pass\n    def __init__(self): pass"),
        "pm_shop:Shop",
        "plugin shop (shop-plugins 1.0, pm_shop:Shop): Shop.__init__ must take (self, options): too many positional"
        " arguments",
    ),
    "an entry point that is not called like its type": (
        MODULE.replace('"shop"', '"shoppe"'),
        "",
        "x.toml: sinks.out.type: the plugin shop offers no sink of that name; it offers the type shoppe: use that, and"
        " add the plugin to plugins.also unless it is loaded already, or register the sink as shop",
    ),
    # The hooks
    "a hook with nearly the right name": (
        MODULE.replace("register_sinks", "register_sink"),
        "",
        f"{PLUGIN}: unknown hook 'register_sink'; did you mean register_sinks?",
    ),
    "a hook that is not marked": (
        MODULE.replace("@hookimpl", ""),
        "",
        f"{PLUGIN}: implements no hook; mark its functions with ingestd.api.hookimpl: register_sinks",
    ),
    "a hook that is not marked and misspelt": (
        MODULE.replace("@hookimpl", "").replace("register_sinks", "registr_sinks"),
        "",
        f"{PLUGIN}: implements no hook; mark its functions with ingestd.api.hookimpl; rename registr_sinks to"
        " register_sinks",
    ),
}  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("pm_shop", None)


def start(site: Path, source: str, target: str = "", name: str = "shop", **tables: Any) -> None:
    """The steps of a start for a plugin and a sink of the type `shop`."""
    write_distribution(site, "shop-plugins", modules={"pm_shop": dedent(source)}, plugins={name: target or "pm_shop"})
    importlib.invalidate_caches()
    tables = {"sinks": {"out": {"type": "shop"}}, **tables}
    config = parse_config(tables, source="x.toml", base=Path("/"))
    plugins = load_plugins(config)
    for each, table in config.sink_tables.items():
        make_sink_consumer(each, table, plugins.sinks[table["type"]], config, transforms={})


@pytest.mark.parametrize(("source", "target", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_stops_the_start_with_its_cure(site: Path, source: str, target: str, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        start(site, source, target)
    assert str(raised.value) == line


def test_a_type_offered_by_a_plugin_of_another_name_is_refused_with_the_cure(site: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        start(site, MODULE, name="tools")
    assert str(raised.value).startswith("x.toml: sinks.out.type: there is no plugin 'shop'; ")
    assert str(raised.value).endswith("; if a plugin with another name offers it, add that to plugins.also: tools")


DECORATED = {
    "no mistake": MODULE,
    "a plain wrapper of a coroutine function": """
        @functools.wraps(ShopSink.write)
        def write(*arguments):
            return ShopSink.__mro__[1].close(*arguments[:1])
        ShopSink.write = write
    """,
    "a wrapper that adds an argument": """
        async def insert(self, connection, batch):
            pass
        @functools.wraps(insert)
        async def write(self, batch):
            await insert(self, None, batch)
        ShopSink.write = write
    """,
    "a coroutine function around a plain one": """
        def insert(self, batch):
            pass
        @functools.wraps(insert)
        async def write(self, batch):
            await asyncio.to_thread(insert, self, batch)
        ShopSink.write = write
    """,
    "a static method": "ShopSink.write = staticmethod(asyncio.sleep)",
    "more arguments with defaults": """
        async def write(self, batch, *, again=False):
            pass
        ShopSink.write = write
        ShopSink.__init__ = lambda self, name, options, rows=3: Sink.__init__(self, name, options)
    """,
}


@pytest.mark.parametrize("addition", DECORATED.values(), ids=DECORATED.keys())
def test_working_plugins_are_accepted(site: Path, addition: str) -> None:
    start(site, MODULE if addition is MODULE else MODULE + dedent(addition))
