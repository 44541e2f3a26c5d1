"""Finds, imports and registers the plugins that a configuration needs, and no others.

Plugins are entry points of the group `ingestd`; this includes the built-in plugins. The plugins in `[plugins] enabled`
and `also` are loaded. If none of them offers the scheme of `[store] url` or `[journal] url`, or the type of a sink, the
plugin with the name of that scheme or type is loaded too.

Extensions are entry points of the group `ingestd.extensions`. They belong to every installation and have no options, so
each configuration has all of them, after the plugins.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pluggy
from pluggy import HookimplOpts

from ingestd import __version__
from ingestd.api import hookspecs
from ingestd.api.consumer import Consumer
from ingestd.api.errors import ConfigError
from ingestd.api.hookspecs import HOOK_NAMESPACE, BackendFactory, hookspec
from ingestd.api.intake import Intake
from ingestd.api.options import Options
from ingestd.api.sink import Sink, Transform
from ingestd.config import Config
from ingestd.support.names import hint, nearest

from .caller import Hooks, register_all, register_each
from .plugin_validation import (
    check_consumer,
    check_entry_point,
    check_hooks,
    check_intake,
    check_plugin_class,
    check_sink_class,
    check_transform,
)

if TYPE_CHECKING:
    from ingestd.api.backend import Partition
    from ingestd.api.check_result import CheckResult
    from ingestd.http.app import MakeServer
    from ingestd.http.operators import Operators
    from ingestd.observability.logs import LogKeeper
    from ingestd.validation.schema_files import SchemaFile
    from ingestd.validation.validator import Validator

__all__ = ["Plugin", "Plugins", "load_plugins"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin with its origin."""

    name: str
    instance: object
    distribution: str
    version: str
    source: str
    options: Options | None
    hooks: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    """The sink types that it registers."""
    stores: tuple[str, ...] = ()
    """The store schemes that it registers."""


@dataclass(frozen=True)
class Plugins:
    """The loaded plugins, with everything that they register."""

    loaded: tuple[Plugin, ...]
    manager: pluggy.PluginManager
    hooks: Hooks
    stores: Mapping[str, BackendFactory]
    sinks: Mapping[str, type[Sink]]
    transforms: Mapping[str, Transform]
    channels: frozenset[str]
    consumers: tuple[Consumer, ...]
    intakes: tuple[Intake, ...]


class _Offered(NamedTuple):
    """An installed plugin, and the name and version of its distribution."""

    point: EntryPoint
    distribution: str
    version: str


class _ExtensionSpecs:
    """The hooks that only extensions implement: they get the insides of the daemon, which are promised to no plugin."""

    @hookspec
    def register_routes(self, operators: Operators) -> None:
        """Add a part to the operators' listener, once at the start: `operators.parts.append(part)`."""

    @hookspec
    def register_servers(self, servers: dict[str, MakeServer]) -> None:
        """Add HTTP servers for events, by the values of `[http] server`."""

    @hookspec
    def make_log_keeper(self) -> LogKeeper:
        """A handler of the log for the daemon's life, from its very beginning."""
        raise NotImplementedError

    @hookspec
    def check_sinks(self, sinks: Sequence[Sink], files: Sequence[SchemaFile]) -> Awaitable[Sequence[CheckResult]]:
        """Results about the destinations of sinks, which have passed their checks, for `ingestd check`."""
        raise NotImplementedError

    @hookspec
    def find_faults(self, file: Path, overrides: Sequence[str]) -> Sequence[str]:
        """All faults of a configuration that cannot be loaded, each as the message of its `ConfigError`."""
        raise NotImplementedError

    @hookspec
    def try_schemas(
        self, validator: Validator, partitions: Sequence[Partition], seconds: float
    ) -> Awaitable[Sequence[CheckResult]]:
        """A warning for each key of which new schemas refuse stored events. It takes no longer than `seconds`."""
        raise NotImplementedError


_EXTENSIONS = f"{HOOK_NAMESPACE}.extensions"


def load_plugins(config: Config, before: Plugins | None = None) -> Plugins:
    """Load and register plugins. Raises `ConfigError`, which names an unknown or broken plugin.

    `before` has the plugins in force. Of these, plugins with unchanged options keep their instance.
    """
    present = {} if before is None else {plugin.name: plugin for plugin in before.loaded}
    available = _available()
    enabled = _enabled(config, available)
    loaded = [_load(name, option, available, config, present=present) for name, option in enabled.items()]
    stores: _Offers[BackendFactory] = _Offers("store", "scheme", lambda scheme, factory: None)
    sinks: _Offers[type[Sink]] = _Offers("sink", "type", check_sink_class)
    manager = _register(loaded)
    _collect(manager, stores, sinks)
    wanted: list[tuple[str, str, _Offers[Any]]] = [
        (url.partition(":")[0], option, stores)
        for option, url in [("store.url", config.store.url), ("journal.url", config.journal.url)]
        if url is not None
    ]
    for name, table in config.sink_tables.items():
        option, kind = f"sinks.{name}.type", table.get("type")
        if not isinstance(kind, str):
            what = "must be given" if kind is None else f"{kind!r} is no text"
            raise ConfigError(f"{config.place(option)}: {what}; expected {sinks.known}")
        wanted.append((kind, option, sinks))
    for name, option, offers in wanted:
        if name not in offers.made and name not in {plugin.name for plugin in loaded}:
            if name not in available:
                raise _unknown_offer(config.place(option), name, available, loaded, offers)
            plugin = _load(name, option, available, config, present=present)
            loaded.append(plugin)
            _collect(_register([plugin]), stores, sinks)
        if name not in offers.made:
            raise ConfigError(f"{config.place(option)}: the plugin {name} offers {offers.instead_of(name)}")
    if len(loaded) > len(enabled):
        manager = _register(loaded)  # a new manager, because pluggy calls the last registered plugin first
    _refuse_tables_of_others(config, loaded, available)
    consumers: list[Consumer] = []

    def register_consumer(consumer: Consumer) -> None:
        check_consumer(consumer)
        consumers.append(consumer)

    register_all(manager, "register_consumers", register_consumer)
    intakes: list[Intake] = []

    def register_intake(intake: Intake) -> None:
        check_intake(intake, intakes)
        intakes.append(intake)

    register_all(manager, "register_intakes", register_intake)
    transforms: _Offers[Transform] = _Offers("transform", "name", check_transform)
    channels: list[str] = []
    register_all(manager, "register_channels", channels.append)
    register_each(manager, "register_transforms", transforms.register_for)
    return Plugins(
        loaded=tuple(_described(plugin, manager, sinks, stores) for plugin in loaded),
        manager=manager,
        hooks=Hooks(manager, started=present),
        stores=stores.made,
        sinks=sinks.made,
        transforms=transforms.made,
        channels=frozenset(channels),
        consumers=tuple(consumers),
        intakes=tuple(intakes),
    )


def _available() -> dict[str, _Offered]:
    found: dict[str, _Offered] = {}
    known: dict[Distribution | None, tuple[str, str]] = {None: ("unknown", "")}
    for point in entry_points(group=HOOK_NAMESPACE):
        dist = point.dist
        if dist is not None and dist not in known:
            metadata = dist.metadata  # each access reads the file again
            # Metadata of an editable installation are as old as the installation.
            own = metadata["Name"] == "ingestd"
            known[dist] = metadata["Name"], __version__ if own else metadata["Version"]
        offered = _Offered(point, *known[dist])
        other = found.setdefault(point.name, offered)
        # A distribution may be found twice, by its installed metadata and its source metadata.
        if (other.point.value, other.distribution) != (point.value, offered.distribution):
            raise ConfigError(
                f"plugin {point.name}: offered by two distributions, {other.distribution} and"
                f" {offered.distribution}; uninstall one"
            )
    return found


def _enabled(config: Config, available: Mapping[str, _Offered]) -> dict[str, str]:
    """The plugins that are loaded in every case, in order. Each is mapped to the option that names it."""
    enabled, also = config.plugins.enabled, config.plugins.also
    for option, names in (("plugins.enabled", enabled or ()), ("plugins.also", also)):
        if len(set(names)) < len(names):
            raise ConfigError(f"{config.place(option)}: a plugin is named twice")
    if enabled is None:
        enabled = tuple(name for name, offered in available.items() if offered.distribution == "ingestd")
    for name in also:
        if name in enabled:
            why = "is built in" if config.plugins.enabled is None else "is in plugins.enabled"
            raise ConfigError(f"{config.place('plugins.also')}: {name} {why}, and so is loaded already; leave it out")
    return dict.fromkeys(enabled, "plugins.enabled") | dict.fromkeys(also, "plugins.also")


def _load(
    name: str,
    option: str,
    available: Mapping[str, _Offered],
    config: Config,
    *,
    present: Mapping[str, Plugin],
) -> Plugin:
    if name not in available:
        raise _unknown_plugin(config.place(option), name, available)
    point, distribution, version = available[name]
    try:
        target: Any = point.load()
    except Exception as error:
        raise ConfigError(
            f"plugin {name} ({distribution} {version}, {point.value}): cannot be imported: {error!r}"
        ) from error
    try:
        check_entry_point(point, target)
        if inspect.isclass(target):
            check_plugin_class(target)
    except ConfigError as error:
        raise ConfigError(f"plugin {name} ({distribution} {version}, {point.value}): {error}") from error
    table = config.plugin_tables.get(name, {})
    instance: object = target
    options: Options | None = None
    if inspect.isclass(target):
        factory: Any = target
        options_type: type[Options] | None = getattr(factory, "Options", None)
        try:
            if options_type is not None:
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
    except ConfigError as error:  # it names the option, but the plugin does not know the file
        raise ConfigError(f"{config.source}: {error}") from error


@cache
def _extensions() -> dict[str, object]:
    points = entry_points(group=_EXTENSIONS)
    if not points:
        raise ConfigError("the installation is of an earlier version than the code: run pip install on it again")
    return {f"{_EXTENSIONS}.{point.name}": point.load() for point in points}


class _Manager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> HookimplOpts | None:
        # What each class has is no hook. Looking at it takes a tenth of a command's time.
        return None if name.startswith("__") else super().parse_hookimpl_opts(plugin, name)


def _register(loaded: Iterable[Plugin]) -> pluggy.PluginManager:
    manager = _Manager(HOOK_NAMESPACE)
    manager.add_hookspecs(hookspecs)
    manager.add_hookspecs(_ExtensionSpecs)
    for name, extension in _extensions().items():
        manager.register(extension, name)
    for plugin in reversed([*loaded]):  # pluggy calls the last registered plugin first
        try:
            manager.register(plugin.instance, plugin.name)
            check_hooks(manager, plugin.instance)
        except (pluggy.PluginValidationError, ValueError, ConfigError) as error:
            reason = "; ".join(str(error).splitlines())  # so that the last line of the log has the whole reason
            raise ConfigError(f"plugin {plugin.name} ({plugin.distribution} {plugin.version}): {reason}") from error
    return manager


class _Offers(Generic[_T]):
    """Everything of one kind that plugins register, such as sinks. Each name occurs once."""

    def __init__(self, what: str, named: str, check: Callable[[str, _T], None]) -> None:
        """`what` is the noun of the kind, `named` the noun of its names. `check` raises `ConfigError` for a bad one."""
        self.made: dict[str, _T] = {}
        self._what = what
        self._named = named
        self._check = check
        self._plugins: dict[str, str] = {}

    def register_for(self, plugin: str) -> Callable[[str, _T], None]:
        def register(name: str, offer: _T) -> None:
            if name in self.made:
                raise ConfigError(f"{self._what} {self._named} {name}: another plugin has registered it")
            self._check(name, offer)
            self.made[name] = offer
            self._plugins[name] = plugin

        return register

    def of(self, plugin: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, by in self._plugins.items() if by == plugin))

    @property
    def known(self) -> str:
        """All names, for a message."""
        end = ":" if self._named == "scheme" else ""
        return ", ".join(f"{each}{end}" for each in sorted(self.made))

    def instead_of(self, name: str) -> str:
        """The part of an error about a plugin that does not offer its own name: what it offers, and the cure."""
        offered = self.of(name)
        text = f"no {self._what} of that name"
        if not offered:
            return f"{text}; expected {self.known}"
        return (
            f"{text}; it offers the {self._named} {', '.join(offered)}: use that, and add the plugin to plugins.also"
            f" unless it is loaded already, or register the {self._what} as {name}"
        )


def _unknown_plugin(place: str, name: str, known: Iterable[str], *, otherwise: str | None = None) -> ConfigError:
    """`otherwise` replaces the list of all plugins if none has a similar name."""
    known = sorted(known)
    cure = hint(name, known, otherwise=otherwise or f"installed: {', '.join(known)}")
    return ConfigError(f"{place}: there is no plugin {name!r}; {cure}")


def _unknown_offer(
    place: str, name: str, available: Mapping[str, _Offered], loaded: Iterable[Plugin], offers: _Offers[Any]
) -> ConfigError:
    """The error for a sink type or store scheme that no loaded plugin offers, and that is not the name of a plugin."""
    otherwise = f"expected {offers.known}" if offers.made else None
    error = _unknown_plugin(place, name, {*available, *offers.made}, otherwise=otherwise)
    others = {each for each, offered in available.items() if offered.distribution != "ingestd"}
    others -= {plugin.name for plugin in loaded}
    if not others:
        return error
    return ConfigError(
        f"{error}; if a plugin with another name offers it, add that to plugins.also: {', '.join(sorted(others))}"
    )


def _collect(manager: pluggy.PluginManager, stores: _Offers[BackendFactory], sinks: _Offers[type[Sink]]) -> None:
    """Add the stores and sinks of these plugins."""
    register_each(manager, "register_stores", stores.register_for)
    register_each(manager, "register_sinks", sinks.register_for)


def _refuse_tables_of_others(config: Config, loaded: Iterable[Plugin], available: Iterable[str]) -> None:
    names = {plugin.name for plugin in loaded}
    for name in config.plugin_tables:
        if name not in names:
            why = "it is not in plugins.enabled or plugins.also" if name in available else "no such plugin"
            near = nearest(name, names)
            cure = f"; did you mean plugins.{near}?" if near else ""
            raise ConfigError(f"{config.place(f'plugins.{name}')}: {why}{cure}")


def _described(plugin: Plugin, manager: pluggy.PluginManager, sinks: _Offers[Any], stores: _Offers[Any]) -> Plugin:
    """The plugin with the names of its hooks, sinks and stores."""
    callers = manager.get_hookcallers(plugin.instance) or []
    hooks = tuple(sorted(caller.name for caller in callers))
    return replace(plugin, hooks=hooks, sinks=sinks.of(plugin.name), stores=stores.of(plugin.name))
