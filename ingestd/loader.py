"""Finds, imports and registers the plugins a configuration asks for, and only those.

Plugins are entry points of the group `ingestd`, the built-in ones like anyone's. What `[plugins]
enabled` names is loaded; so is the plugin called like the scheme of `[store] url` or the type of a
sink, where no enabled plugin offers that scheme or type.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import Any, Generic, NamedTuple, TypeVar

import pluggy

from . import hookspecs
from .config import Config
from .consumer import Consumer
from .errors import ConfigError
from .hooks import Hooks, register_all, register_each
from .hookspecs import HOOK_NAMESPACE, BackendFactory
from .options import Options
from .sink import Sink

__all__ = ["Plugin", "Plugins", "load_plugins"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin and where it comes from."""

    name: str
    instance: object
    distribution: str
    version: str
    source: str
    options: Options | None
    hooks: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    """The types of sinks it registers,"""
    stores: tuple[str, ...] = ()
    """and the schemes of stores."""


@dataclass(frozen=True)
class Plugins:
    """What the loaded plugins offer."""

    loaded: tuple[Plugin, ...]
    manager: pluggy.PluginManager
    hooks: Hooks
    stores: Mapping[str, BackendFactory]
    sinks: Mapping[str, type[Sink]]
    consumers: tuple[Consumer, ...]


class _Offered(NamedTuple):
    """A plugin that is installed, and the name and version of what it is installed with."""

    point: EntryPoint
    distribution: str
    version: str


def load_plugins(config: Config, before: Plugins | None = None) -> Plugins:
    """Load and register. Raises `ConfigError` naming the plugin that is unknown or broken.

    Of `before`, the plugins in force, those stay whose options are the same.
    """
    present = {} if before is None else {plugin.name: plugin for plugin in before.loaded}
    available = _available()
    enabled = config.plugins.enabled
    if enabled is None:
        enabled = tuple(name for name, offered in available.items() if offered.distribution == "ingestd")
    elif len(set(enabled)) < len(enabled):
        raise ConfigError(f"{config.place('plugins.enabled')}: a plugin is named twice")
    loaded = [_load(name, "plugins.enabled", available, config, present=present) for name in enabled]
    stores: _Offers[BackendFactory] = _Offers("store scheme")
    sinks: _Offers[type[Sink]] = _Offers("sink type")
    manager = _register(loaded)
    _collect(manager, stores, sinks)
    wanted: list[tuple[str, str, _Offers[Any]]] = [
        (_scheme(url), option, stores)
        for option, url in [("store.url", config.store.url), ("journal.url", config.journal.url)]
        if url is not None
    ]
    for name, table in config.sink_tables.items():
        option, kind = f"sinks.{name}.type", table.get("type")
        if not isinstance(kind, str):
            known = ", ".join(sorted(sinks.made))
            raise ConfigError(f"{config.place(option)}: expected a kind of sink ({known}), got {kind!r}")
        wanted.append((kind, option, sinks))
    for name, option, offers in wanted:
        if name not in offers.made and name not in {plugin.name for plugin in loaded}:
            plugin = _load(name, option, available, config, present=present, offered=offers.made)
            loaded.append(plugin)
            _collect(_register([plugin]), stores, sinks)
        if name not in offers.made:
            what = "store" if offers is stores else "sink"
            raise ConfigError(f"{config.place(option)}: the plugin {name} offers no {what} of that name")
    if len(loaded) > len(enabled):
        manager = _register(loaded)  # anew, since pluggy calls first what was registered last
    _refuse_tables_of_others(config, loaded, available)
    consumers: list[Consumer] = []
    register_all(manager, "register_consumers", consumers.append)
    return Plugins(
        loaded=tuple(_described(plugin, manager, sinks, stores) for plugin in loaded),
        manager=manager,
        hooks=Hooks(manager, started=present),
        stores=stores.made,
        sinks=sinks.made,
        consumers=tuple(consumers),
    )


def _available() -> dict[str, _Offered]:
    found: dict[str, _Offered] = {}
    known: dict[Distribution | None, tuple[str, str]] = {None: ("unknown", "")}
    for point in entry_points(group=HOOK_NAMESPACE):
        dist = point.dist
        if dist is not None and dist not in known:
            metadata = dist.metadata  # each time it is asked for, the file is read anew
            known[dist] = metadata["Name"], metadata["Version"]
        offered = _Offered(point, *known[dist])
        other = found.setdefault(point.name, offered)
        # The same distribution may be found twice, by its installed and its source metadata.
        if (other.point.value, other.distribution) != (point.value, offered.distribution):
            raise ConfigError(
                f"plugin {point.name}: offered by two distributions, {other.distribution} and"
                f" {offered.distribution}; uninstall one"
            )
    return found


def _load(
    name: str,
    option: str,
    available: Mapping[str, _Offered],
    config: Config,
    *,
    present: Mapping[str, Plugin],
    offered: Iterable[str] = (),
) -> Plugin:
    if name not in available:
        known = sorted({*available, *offered})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"installed: {', '.join(known)}"
        raise ConfigError(f"{config.place(option)}: there is no plugin {name!r}; {hint}")
    point, distribution, version = available[name]
    try:
        target: Any = point.load()
    except Exception as error:
        raise ConfigError(
            f"plugin {name} ({distribution} {version}, {point.value}): cannot be imported: {error!r}"
        ) from error
    table = config.plugin_tables.get(name, {})
    instance: object = target
    options: Options | None = None
    if inspect.isclass(target):
        factory: Any = target
        options_type = getattr(factory, "Options", None)
        try:
            if options_type is not None and issubclass(options_type, Options):
                options, table = config.read(options_type, table, f"plugins.{name}"), {}
            same = present.get(name)
            if same is not None and type(same.instance) is factory and same.options == options:
                instance = same.instance
            else:
                instance = _make(factory, options, config)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"plugin {name} ({distribution} {version}): cannot be set up: {error!r}") from error
    if table:
        raise ConfigError(f"{config.place(f'plugins.{name}')}: this plugin has no options")
    return Plugin(name, instance, distribution, version, point.value, options)


def _make(factory: Any, options: Options | None, config: Config) -> object:
    try:
        return factory() if options is None else factory(options)
    except ConfigError as error:  # it names the option, and cannot know the file
        raise ConfigError(f"{config.source}: {error}") from error


def _register(loaded: Iterable[Plugin]) -> pluggy.PluginManager:
    manager = pluggy.PluginManager(HOOK_NAMESPACE)
    manager.add_hookspecs(hookspecs)
    for plugin in reversed([*loaded]):  # pluggy calls first what was registered last
        try:
            manager.register(plugin.instance, plugin.name)
            manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            reason = "; ".join(str(error).splitlines())  # the last line of a log says it all
            raise ConfigError(f"plugin {plugin.name} ({plugin.distribution} {plugin.version}): {reason}") from error
        if not manager.get_hookcallers(plugin.instance):
            raise ConfigError(
                f"plugin {plugin.name} ({plugin.distribution} {plugin.version}): implements no hook;"
                " mark its functions with ingestd.hookimpl"
            )
    return manager


class _Offers(Generic[_T]):
    """What plugins offer of one kind, each name once."""

    def __init__(self, what: str) -> None:
        self.made: dict[str, _T] = {}
        self._what = what
        self._plugins: dict[str, str] = {}

    def register_for(self, plugin: str) -> Callable[[str, _T], None]:
        def register(name: str, offer: _T) -> None:
            if name in self.made:
                raise ConfigError(f"{self._what} {name}: another plugin has registered it")
            self.made[name] = offer
            self._plugins[name] = plugin

        return register

    def of(self, plugin: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, by in self._plugins.items() if by == plugin))


def _collect(manager: pluggy.PluginManager, stores: _Offers[BackendFactory], sinks: _Offers[type[Sink]]) -> None:
    """Add what these plugins offer."""
    register_each(manager, "register_stores", stores.register_for)
    register_each(manager, "register_sinks", sinks.register_for)


def _refuse_tables_of_others(config: Config, loaded: Iterable[Plugin], available: Iterable[str]) -> None:
    names = {plugin.name for plugin in loaded}
    for name in config.plugin_tables:
        if name not in names:
            near = difflib.get_close_matches(name, [*names], n=1)
            hint = "it is not in plugins.enabled" if name in available else "no such plugin"
            if near:
                hint += f"; did you mean plugins.{near[0]}?"
            raise ConfigError(f"{config.place(f'plugins.{name}')}: {hint}")


def _described(plugin: Plugin, manager: pluggy.PluginManager, sinks: _Offers[Any], stores: _Offers[Any]) -> Plugin:
    """With what it adds."""
    callers = manager.get_hookcallers(plugin.instance) or []
    hooks = tuple(sorted(caller.name for caller in callers))
    return replace(plugin, hooks=hooks, sinks=sinks.of(plugin.name), stores=stores.of(plugin.name))


def _scheme(url: str) -> str:
    return url.partition(":")[0]
