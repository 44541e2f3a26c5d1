"""Plugins are found by their entry points. Only the needed ones are imported, and errors name a broken plugin."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import ConfigError
from ingestd.config import parse_config
from ingestd.hooks import loader
from ingestd.hooks.loader import Plugins, load_plugins
from tests.support.distribution import write_distribution

NEEDED = ["hmac_auth", "session", "sqlite"]

HOOKS = """
    import ingestd.api

    @ingestd.api.hookimpl
    def enrich(event):
        event.context["shop"] = True
"""

Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Put distributions on the module path. Their modules are unloaded after the test."""

    def write(name: str = "shop-plugins", *, modules: dict[str, str], plugins: dict[str, str]) -> None:
        write_distribution(tmp_path, name, modules=modules, plugins=plugins)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for module in [name for name in sys.modules if name.startswith("lp_")]:
        del sys.modules[module]


def load(enabled: list[str] | None = None, **tables: Any) -> Plugins:
    plugins = {**tables.pop("plugins", {}), **({} if enabled is None else {"enabled": enabled})}
    return load_plugins(parse_config({**tables, "plugins": plugins}, source="x.toml", base=Path("/")))


def names(plugins: Plugins) -> list[str]:
    return [plugin.name for plugin in plugins.loaded]


def test_without_a_list_every_built_in_plugin_is_loaded_and_no_other(offer: Offer) -> None:
    offer(modules={"lp_unasked": "raise RuntimeError('imported')"}, plugins={"unasked": "lp_unasked"})
    plugins = load()
    assert {"keys", "hmac_auth", "identity", "session", "sqlite", "jsonl"} <= {*names(plugins)}
    assert {plugin.distribution for plugin in plugins.loaded} == {"ingestd"}
    assert "sqlite" in plugins.stores
    assert "jsonl" in plugins.sinks


def test_only_enabled_plugins_are_imported(offer: Offer) -> None:
    offer(
        modules={"lp_wanted": HOOKS, "lp_broken": "raise RuntimeError('imported')"},
        plugins={"wanted": "lp_wanted", "broken": "lp_broken"},
    )
    plugins = load([*NEEDED, "wanted"])
    assert names(plugins) == [*NEEDED, "wanted"]
    assert "lp_broken" not in sys.modules


def test_also_adds_plugins_after_the_built_in_ones_in_order(offer: Offer) -> None:
    offer(
        modules={"lp_wanted": HOOKS, "lp_second": HOOKS, "lp_unasked": "raise RuntimeError('imported')"},
        plugins={"wanted": "lp_wanted", "another": "lp_second", "unasked": "lp_unasked"},
    )
    assert names(load(plugins={"also": ["wanted", "another"]})) == [*names(load()), "wanted", "another"]


def test_also_adds_to_a_list_of_plugins_too(offer: Offer) -> None:
    offer(modules={"lp_wanted": HOOKS}, plugins={"wanted": "lp_wanted"})
    assert names(load(NEEDED, plugins={"also": ["wanted", "keys"]})) == [*NEEDED, "wanted", "keys"]
    assert names(load(NEEDED, plugins={"also": []})) == NEEDED


def test_also_loads_the_plugin_of_a_sink_type_with_another_name(offer: Offer) -> None:
    offer(modules={"lp_shout": SINK.format(type="shout")}, plugins={"loud": "lp_shout:Plugin"})
    tables = {"sinks": {"a": {"type": "shout"}}, "plugins": {"also": ["loud"]}}
    assert names(load(NEEDED, **tables)) == [*NEEDED, "loud"]


@pytest.mark.parametrize(
    ("enabled", "also", "message"),
    [
        (None, ["shop_tolls"], "x.toml: plugins.also: there is no plugin 'shop_tolls'; did you mean shop_tools?"),
        (NEEDED, ["shop_tolls"], "x.toml: plugins.also: there is no plugin 'shop_tolls'; did you mean shop_tools?"),
        (None, ["shop_tools", "shop_tools"], "x.toml: plugins.also: a plugin is named twice"),
        (None, ["keys"], "x.toml: plugins.also: keys is built in, and so is loaded already; leave it out"),
        (
            NEEDED,
            ["session"],
            "x.toml: plugins.also: session is in plugins.enabled, and so is loaded already; leave it out",
        ),
        (None, "shop_tools", "x.toml: plugins.also: expected an array in brackets, got 'shop_tools'"),
    ],
)
def test_a_wrong_name_in_also_is_refused(offer: Offer, enabled: list[str] | None, also: Any, message: str) -> None:
    offer(modules={"lp_wanted": HOOKS}, plugins={"shop_tools": "lp_wanted"})
    with pytest.raises(ConfigError) as raised:
        load(enabled, plugins={"also": also})
    assert str(raised.value) == message


def test_a_misspelt_option_of_plugins_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"x\.toml: plugins\.alos: unknown option; did you mean plugins\.also\?"):
        load(plugins={"alos": ["shop_tools"]})


def test_code_that_is_newer_than_its_installation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader._extensions.cache_clear()
    monkeypatch.setattr(loader, "entry_points", lambda group: [])
    with pytest.raises(ConfigError, match="of an earlier version than the code: run pip install"):
        load()
    monkeypatch.undo()
    assert loader._extensions()


def test_the_origin_and_the_hooks_of_a_plugin_are_known(offer: Offer) -> None:
    offer(modules={"lp_wanted": HOOKS}, plugins={"wanted": "lp_wanted"})
    plugin = load([*NEEDED, "wanted"]).loaded[-1]
    assert (plugin.name, plugin.distribution, plugin.version, plugin.source, plugin.hooks) == (
        "wanted", "shop-plugins", "1.0", "lp_wanted", ("enrich",),
    )  # fmt: skip


def test_a_plugin_may_be_a_module_an_object_or_a_class_with_options(offer: Offer) -> None:
    source = f"""{HOOKS}
    class Plain:
        @ingestd.api.hookimpl
        def enrich(self, event):
            pass

    plain = Plain()

    from ingestd.api.options import Duration, Options as BaseOptions

    class Tunable(Plain):
        class Options(BaseOptions):
            pause: Duration = Duration.parse("1s")

        def __init__(self, options):
            self.pause = options.pause
    """
    offer(
        modules={"lp_kinds": source},
        plugins={"a": "lp_kinds", "b": "lp_kinds:plain", "c": "lp_kinds:Plain", "d": "lp_kinds:Tunable"},
    )
    plugins = load([*NEEDED, "a", "b", "c", "d"], plugins={"d": {"pause": "5m"}})
    instances = [plugin.instance for plugin in plugins.loaded[-4:]]
    module = sys.modules["lp_kinds"]
    assert instances[:2] == [module, module.plain]
    assert type(instances[2]) is module.Plain
    assert getattr(instances[3], "pause", None) == 300


@pytest.mark.parametrize("order", [["first", "second"], ["second", "first"]])
async def test_hooks_are_called_in_the_order_of_the_list(offer: Offer, order: list[str]) -> None:
    source = """
    import ingestd.api

    class Plugin:
        @ingestd.api.hookimpl
        def resolve_user(self):
            return type(self).__name__

    class first(Plugin): pass
    class second(Plugin): pass
    """
    offer(modules={"lp_order": source}, plugins={"first": "lp_order:first", "second": "lp_order:second"})
    plugins = load([*NEEDED, *order])
    event: Any = None
    state: Any = None
    assert await plugins.hooks.resolve_user(event, state) == order[0]


@pytest.mark.parametrize(
    ("enabled", "message"),
    [
        (["sesion"], r"x\.toml: plugins\.enabled: there is no plugin 'sesion'; did you mean session\?"),
        (["zzz"], r"plugins\.enabled: there is no plugin 'zzz'; installed: .*session"),
        (["session", "keys", "session"], r"plugins\.enabled: a plugin is named twice"),
        (["session"], r"plugins\.enabled: no plugin implements authenticate"),
        (["keys"], r"plugins\.enabled: no plugin implements resolve_session"),
    ],
)
def test_a_wrong_list_is_refused_with_the_nearest_name(enabled: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(enabled)


BROKEN = {
    "a module that raises": ("raise OSError('no cart')", "lp_broken", r"cannot be imported: OSError\('no cart'\)"),
    "a syntax error": ("def", "lp_broken", "cannot be imported: SyntaxError"),
    "no such module": ("", "lp_missing", "lp_missing.*cannot be imported: ModuleNotFoundError"),
    "no such attribute": ("", "lp_broken:Plugin", "lp_broken:Plugin.*cannot be imported: AttributeError"),
    "a misspelt hook": (HOOKS.replace("enrich", "enrch"), "lp_broken", "unknown hook 'enrch'"),
    "an argument that the hook does not have": (HOOKS.replace("(event)", "(event, visitor)"), "lp_broken", "visitor"),
    "no hook": (
        "def enrich(event): pass",
        "lp_broken",
        "implements no hook; mark its functions with ingestd.api.hookimpl",
    ),
    "a wrapper": (
        HOOKS.replace("hookimpl", "hookimpl(wrapper=True)") + "        yield",
        "lp_broken",
        "enrich cannot be a wrapper",
    ),
    "a constructor that raises": (
        "class P:\n    def __init__(self): raise ValueError('no key')", "lp_broken:P", r"up: ValueError\('no key'\)",
    ),
    "a constructor with an unexpected argument": (
        "class P:\n    def __init__(self, options): pass",
        "lp_broken:P",
        r"P\.__init__, without Options, must take \(self\): missing a required argument: 'options'",
    ),
    "a registration that raises": (
        "import ingestd.api\n@ingestd.api.hookimpl\ndef register_sinks(register): register(1 / 0)",
        "lp_broken",
        "register_sinks failed: ZeroDivisionError",
    ),
    "a registration that is a coroutine function": (
        "import ingestd.api\n@ingestd.api.hookimpl\nasync def register_consumers(register): pass",
        "lp_broken",
        "register_consumers cannot be a coroutine function",
    ),
    "a sink type that is there already": (
        "import ingestd.api\n@ingestd.api.hookimpl\ndef register_sinks(register): register('jsonl', None)",
        "lp_broken",
        "sink type jsonl: another plugin has registered it",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_plugin_stops_the_start_with_its_name(offer: Offer, source: str, target: str, message: str) -> None:
    offer(modules={"lp_broken": source}, plugins={"broken": target})
    with pytest.raises(ConfigError, match=f"plugin broken.*{message}"):
        load([*NEEDED, "jsonl", "broken"])


def test_a_constructor_may_name_a_wrong_option(offer: Offer) -> None:
    source = (
        "from ingestd.api.errors import ConfigError\ndef raises(): raise ConfigError('plugins.p.level: too high')\n"
    )
    offer(modules={"lp_picky": source + "class P:\n    def __init__(self): raises()"}, plugins={"p": "lp_picky:P"})
    with pytest.raises(ConfigError, match=r"^x\.toml: plugins\.p\.level: too high$"):
        load([*NEEDED, "p"])


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"session": {"idel": "5m"}},
            r"x\.toml: plugins\.session\.idel: unknown option; did you mean plugins\.session",
        ),
        ({"session": {"idle": 5}}, r"x\.toml: plugins\.session\.idle: expected a number with a unit"),
        ({"stdout": {"idle": "5m"}}, r"x\.toml: plugins\.stdout: this plugin has no options"),
        ({"sesion": {}}, r"x\.toml: plugins\.sesion: no such plugin; did you mean plugins\.session\?"),
        ({"identity": {}}, r"x\.toml: plugins\.identity: it is not in plugins\.enabled"),
    ],
)
def test_wrong_options_are_refused_with_their_path(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load([*NEEDED, "stdout"], plugins=tables)


def test_one_name_in_two_distributions_is_refused(offer: Offer) -> None:
    offer("other-shop", modules={"lp_session": HOOKS}, plugins={"session": "lp_session"})
    with pytest.raises(ConfigError, match=r"plugin session: offered by two .*other-shop.*uninstall one"):
        load(NEEDED)


SINK = """
    import ingestd.api
    from ingestd.api.sink import Sink

    class ShoutSink(Sink):
        async def write(self, batch):
            pass

    class Plugin:
        calls = 0

        @ingestd.api.hookimpl
        def register_sinks(self, register):
            self.calls += 1
            register("{type}", ShoutSink)
"""


def test_plugins_of_a_sink_or_the_store_are_loaded_without_being_enabled(offer: Offer) -> None:
    offer(modules={"lp_shout": SINK.format(type="shout")}, plugins={"shout": "lp_shout:Plugin"})
    plugins = load(["hmac_auth", "session"], sinks={"a": {"type": "shout"}, "b": {"type": "shout"}})
    assert names(plugins) == ["hmac_auth", "session", "sqlite", "shout"]
    assert plugins.sinks["shout"] is sys.modules["lp_shout"].ShoutSink
    assert "sqlite" in plugins.stores


def test_a_plugin_of_another_name_that_offers_the_type_is_enough(offer: Offer) -> None:
    offer(
        modules={"lp_shout": SINK.format(type="shout"), "lp_other": "raise RuntimeError('imported')"},
        plugins={"loud": "lp_shout:Plugin", "shout": "lp_other"},
    )
    assert names(load([*NEEDED, "loud"], sinks={"a": {"type": "shout"}})) == [*NEEDED, "loud"]


def test_a_plugin_registers_once_however_many_are_loaded_later(offer: Offer) -> None:
    offer(
        modules={"lp_shout": SINK.format(type="shout"), "lp_late": SINK.format(type="late")},
        plugins={"shout": "lp_shout:Plugin", "late": "lp_late:Plugin"},
    )
    plugins = load(["hmac_auth", "session", "shout"], sinks={"a": {"type": "late"}, "b": {"type": "jsonl"}})
    assert [getattr(plugin.instance, "calls", None) for plugin in plugins.loaded] == [None, None, 1, None, 1, None]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"sinks": {"a": {"type": "jsnol"}}},
            r"x\.toml: sinks\.a\.type: there is no plugin 'jsnol'; did you mean jsonl",
        ),
        ({"sinks": {"a": {"type": "session"}}}, r"sinks\.a\.type: the plugin session offers no sink of that name"),
        ({"sinks": {"a": {"type": "identity"}}}, r"sinks\.a\.type: the plugin identity offers no sink of that name"),
        ({"store": {"url": "mysql:x"}}, r"store\.url: there is no plugin 'mysql'; expected sqlite:\Z"),
        ({"store": {"url": "sqlit:x"}}, r"store\.url: there is no plugin 'sqlit'; did you mean sqlite\?"),
        (
            {"journal": {"url": "jsonl:x"}},
            r"journal\.url: the plugin jsonl offers no store of that name; expected sqlite:",
        ),
    ],
)
def test_a_type_or_scheme_that_no_plugin_offers_is_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(NEEDED, **tables)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"type": "mysql"}, "there is no plugin 'mysql'; expected"),
        ({"type": 3}, "3 is no text; expected"),
        ({"typ": "jsonl"}, "must be given; expected"),
    ],
)
def test_the_kinds_of_sinks_are_told_and_no_other_plugins(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"sinks\.a\.type: {fault} jsonl, stdout\Z"):
        load([*NEEDED, "jsonl", "stdout"], sinks={"a": table})


def test_a_plugin_loaded_for_a_sink_has_its_options(offer: Offer) -> None:
    source = f"""{SINK.format(type="shout")}
    from ingestd.api.options import Options as BaseOptions

    class Tunable(Plugin):
        class Options(BaseOptions):
            volume: int = 1

        def __init__(self, options):
            self.volume = options.volume
    """
    offer(modules={"lp_shout": source}, plugins={"shout": "lp_shout:Tunable"})
    plugins = load(NEEDED, sinks={"a": {"type": "shout"}}, plugins={"shout": {"volume": 11}})
    assert getattr(plugins.loaded[-1].instance, "volume", None) == 11
