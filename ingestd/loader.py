"""Finds, imports and registers the plugins a configuration asks for, and only those.

Plugins are entry points of the group `ingestd`, the built-in ones like anyone's. What `[plugins]
enabled` names is loaded; so is the plugin called like the scheme of `[store] url` or the type of a
sink, where no enabled plugin offers that scheme or type.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from . import hookspecs
from .config import Config, Options, read_options
from .consumer import Consumer
from .errors import ConfigError
from .hooks import Hooks
from .hookspecs import HOOK_NAMESPACE, BackendFactory
from .sink import Sink

__all__ = ["Plugin", "Plugins", "load_plugins"]


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin and where it comes from."""

    name: str
    instance: object
    distribution: str
    version: str
    source: str
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plugins:
    """What the loaded plugins offer."""

    loaded: tuple[Plugin, ...]
    manager: pluggy.PluginManager
    hooks: Hooks
    stores: Mapping[str, BackendFactory]
    sinks: Mapping[str, type[Sink]]
    consumers: tuple[Consumer, ...]


def load_plugins(config: Config) -> Plugins:
    """Load and register. Raises `ConfigError` naming the plugin that is unknown or broken."""
    available = _available()
    enabled = config.plugins.enabled
    if enabled is None:
        enabled = tuple(name for name, point in available.items() if _distribution(point)[0] == "ingestd")
    elif len(set(enabled)) < len(enabled):
        raise ConfigError(f"{config.source}: plugins.enabled: a plugin is named twice")
    loaded = [_load(name, "plugins.enabled", available, config) for name in enabled]
    manager, stores, sinks = _register(loaded)
    wanted = {
        **{_scheme(url): "store.url" for url in [config.store.url]},
        **{_scheme(url): "journal.url" for url in [config.journal.url] if url is not None},
    }
    missing = {scheme: option for scheme, option in wanted.items() if scheme not in stores}
    for name, table in config.sink_tables.items():
        kind = table.get("type")
        if isinstance(kind, str) and kind not in sinks:
            missing[kind] = f"sinks.{name}.type"
    if missing:
        loaded += [
            _load(name, option, available, config, [*stores] if option.endswith("url") else [*sinks])
            for name, option in missing.items()
        ]
        manager, stores, sinks = _register(loaded)
        for name, option in missing.items():
            if name not in (stores if option.endswith("url") else sinks):
                raise ConfigError(f"{config.source}: {option}: the plugin {name} offers no such thing")
    _refuse_tables_of_others(config, loaded, available)
    consumers: list[Consumer] = []
    manager.hook.register_consumers(register=consumers.append)
    return Plugins(
        loaded=tuple(_with_hooks(plugin, manager) for plugin in loaded),
        manager=manager,
        hooks=Hooks(manager),
        stores=stores,
        sinks=sinks,
        consumers=tuple(consumers),
    )


def _available() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=HOOK_NAMESPACE):
        other = found.setdefault(point.name, point)
        # The same distribution may be found twice, by its installed and its source metadata.
        if (other.value, _distribution(other)[0]) != (point.value, _distribution(point)[0]):
            raise ConfigError(
                f"plugin {point.name}: offered by two distributions, {_distribution(other)[0]} and"
                f" {_distribution(point)[0]}; uninstall one"
            )
    return found


def _distribution(point: EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "")


def _load(
    name: str, option: str, available: Mapping[str, EntryPoint], config: Config, offered: Iterable[str] = ()
) -> Plugin:
    if name not in available:
        known = sorted({*available, *offered})
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"installed: {', '.join(known)}"
        raise ConfigError(f"{config.source}: {option}: there is no plugin {name!r}; {hint}")
    point = available[name]
    distribution, version = _distribution(point)
    try:
        target: Any = point.load()
    except Exception as error:
        raise ConfigError(
            f"plugin {name} ({distribution} {version}, {point.value}): cannot be imported: {error!r}"
        ) from error
    table = config.plugin_tables.get(name, {})
    instance: object = target
    if inspect.isclass(target):
        factory: Any = target
        options_type = getattr(factory, "Options", None)
        try:
            if options_type is not None and issubclass(options_type, Options):
                options = read_options(
                    options_type, table, path=f"plugins.{name}", source=config.source, base=config.base
                )
                instance, table = factory(options), {}
            else:
                instance = factory()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"plugin {name} ({distribution} {version}): cannot be set up: {error!r}") from error
    if table:
        raise ConfigError(f"{config.source}: plugins.{name}: this plugin has no options")
    return Plugin(name, instance, distribution, version, point.value)


def _register(
    loaded: Iterable[Plugin],
) -> tuple[pluggy.PluginManager, dict[str, BackendFactory], dict[str, type[Sink]]]:
    manager = pluggy.PluginManager(HOOK_NAMESPACE)
    manager.add_hookspecs(hookspecs)
    for plugin in reversed([*loaded]):  # pluggy calls first what was registered last
        try:
            manager.register(plugin.instance, plugin.name)
            manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise ConfigError(f"plugin {plugin.name} ({plugin.distribution} {plugin.version}): {error}") from error
    stores: dict[str, BackendFactory] = {}
    sinks: dict[str, type[Sink]] = {}
    manager.hook.register_stores(register=_once(stores, "store scheme"))
    manager.hook.register_sinks(register=_once(sinks, "sink type"))
    return manager, stores, sinks


def _once(offers: dict[str, Any], what: str) -> Any:
    def register(name: str, offer: Any) -> None:
        if name in offers:
            raise ConfigError(f"{what} {name}: registered by two plugins")
        offers[name] = offer

    return register


def _refuse_tables_of_others(config: Config, loaded: Iterable[Plugin], available: Iterable[str]) -> None:
    names = {plugin.name for plugin in loaded}
    for name in config.plugin_tables:
        if name not in names:
            near = difflib.get_close_matches(name, [*names], n=1)
            hint = "it is not in plugins.enabled" if name in available else "no such plugin"
            if near:
                hint += f"; did you mean plugins.{near[0]}?"
            raise ConfigError(f"{config.source}: plugins.{name}: {hint}")


def _with_hooks(plugin: Plugin, manager: pluggy.PluginManager) -> Plugin:
    callers = manager.get_hookcallers(plugin.instance) or []
    hooks = tuple(sorted(caller.name for caller in callers))
    return Plugin(plugin.name, plugin.instance, plugin.distribution, plugin.version, plugin.source, hooks)


def _scheme(url: str) -> str:
    return url.partition(":")[0]
