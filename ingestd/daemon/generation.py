"""A generation: the objects made from one reading of the configuration, and the next generation for a reload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ingestd.api.errors import ConfigError
from ingestd.api.options import Options
from ingestd.config import SECTIONS, Config
from ingestd.delivery import SinkConsumer, make_sink_consumer
from ingestd.hooks.loader import Plugin, Plugins, load_plugins
from ingestd.http.routes import Routes
from ingestd.validation.validator import Validator

__all__ = [
    "Generation",
    "check_intakes",
    "differences",
    "first_generation",
    "is_fixed",
    "next_generation",
    "renewed",
]

_FIXED = frozenset([
    "http.listen", "http.server", "ops.listen", "store.url", "journal.url", "ids.unusable", "plugins.enabled",
    "plugins.also",
])  # fmt: skip
_FOR_LIFE = frozenset(["register_consumers", "register_stores"])
_FOR_SINKS = frozenset(["register_sinks"])


def is_fixed(path: str, plugin: Plugin | None) -> bool:
    """Whether only a restart can change an option. `plugin` has the option, None for the daemon's own options."""
    if plugin is None:
        return path in _FIXED
    return "take_over" not in plugin.hooks or bool(_FOR_LIFE & {*plugin.hooks})


class Generation(NamedTuple):
    number: int
    config: Config
    plugins: Plugins
    validator: Validator
    sinks: Sequence[SinkConsumer]


def first_generation(config: Config, plugins: Plugins) -> Generation:
    """The generation of a start. Raises `ConfigError`."""
    validator = Validator.load(config.schemas.directory)
    check_intakes(config, plugins, validator.keys)
    return Generation(1, config, plugins, validator, _make_sinks(config, plugins, validator, {}))


def next_generation(before: Generation, config: Config, validator: Validator) -> Generation:
    """The generation of a reload, checked but not started. Plugins and sinks with unchanged options are reused.

    Raises `ConfigError`, also for a change that needs a restart.
    """
    paths = [path for path in _changed_options(before.config, config) if is_fixed(path, None)]
    _refuse(paths, config)
    plugins = load_plugins(config, before.plugins)
    check_intakes(config, plugins, validator.keys)
    _refuse([*_fixed_plugins(before.plugins, plugins)], config)
    sinks = _make_sinks(config, plugins, validator, {each.sink.name: each for each in before.sinks})
    return Generation(before.number + 1, config, plugins, validator, sinks)


def renewed(before: Plugins, after: Plugins) -> Mapping[str, object]:
    """The plugins of `before` that a new object replaces, by name."""
    return {new.name: old.instance for old, new in _kept(before, after) if old.instance is not new.instance}


def _kept(before: Plugins, after: Plugins) -> list[tuple[Plugin, Plugin]]:
    """The plugins that are in both, as they were and as they are."""
    present = {plugin.name: plugin for plugin in before.loaded}
    return [(present[plugin.name], plugin) for plugin in after.loaded if plugin.name in present]


def differences(before: Generation, after: Generation) -> list[str]:
    """The paths of the options and sections that have changed, without values."""
    found = [*_changed_options(before.config, after.config)]
    for was, now in _kept(before.plugins, after.plugins):
        found += _changed(f"plugins.{now.name}", was.options, now.options)
    olds, news = [{each.sink.name: each for each in generation.sinks} for generation in (before, after)]
    for name in sorted(olds.keys() | news.keys()):
        old, new = olds.get(name), news.get(name)
        if old is not new:
            found.append(f"sinks.{name} {'added' if old is None else 'removed' if new is None else 'restarted'}")
    if before.validator.sources != after.validator.sources:
        found.append(f"schemas ({len(after.validator.keys)} event keys)")
    return found


def _make_sinks(
    config: Config, plugins: Plugins, validator: Validator, present: Mapping[str, SinkConsumer]
) -> list[SinkConsumer]:
    return [
        make_sink_consumer(
            name,
            table,
            plugins.sinks[table["type"]],
            config,
            validator.keys,
            transforms=plugins.transforms,
            channels=plugins.channels,
            before=present.get(name),
        )
        for name, table in config.sink_tables.items()
    ]


def check_intakes(config: Config, plugins: Plugins, keys: frozenset[str]) -> None:
    """Check the intakes with the event keys, and their paths with each other. Raises `ConfigError`."""
    try:
        Routes(plugins.intakes)
        for intake in plugins.intakes:
            intake.check(keys)
    except ConfigError as error:
        raise ConfigError(f"{config.source}: {error}") from error


def _refuse(paths: Sequence[str], config: Config) -> None:
    if paths:
        others = "".join(f", {path}" for path in paths[1:])
        raise ConfigError(
            f"{config.place(paths[0])}{others}: a reload cannot change it, so nothing is changed; restart the daemon,"
            " or restore the old value"
        )


def _changed_options(before: Config, after: Config) -> Iterator[str]:
    for name in SECTIONS:
        yield from _changed(name, getattr(before, name), getattr(after, name))


def _changed(path: str, before: Options | None, after: Options | None) -> Iterator[str]:
    if before is not None and after is not None:
        for field in msgspec.structs.fields(after):
            if getattr(before, field.name) != getattr(after, field.name):
                yield f"{path}.{field.name}"


def _fixed_plugins(before: Plugins, after: Plugins) -> Iterator[str]:
    """The changed options of plugins that a reload cannot replace, and `plugins.enabled` for other plugins or order."""
    for old, new in _kept(before, after):
        if old.instance is not new.instance:
            changed = _changed(f"plugins.{new.name}", old.options, new.options)
            yield from (path for path in changed if is_fixed(path, new))
    if _order(before.loaded) != _order(after.loaded):
        yield "plugins.enabled"


def _order(plugins: Sequence[Plugin]) -> list[str]:
    """The names of plugins with other hooks than `register_sinks`, in the order of their calls."""
    return [plugin.name for plugin in plugins if {*plugin.hooks} - _FOR_SINKS]
