"""Checks plugins while they are loaded. A mistake of an author stops the start, and the error names the cure."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import EntryPoint
from typing import Any, get_type_hints

import pluggy

from ingestd.api import hookspecs
from ingestd.api.consumer import Consumer
from ingestd.api.errors import ConfigError
from ingestd.api.events import Endpoint
from ingestd.api.hookspecs import HOOK_NAMESPACE
from ingestd.api.intake import Intake
from ingestd.api.options import Options
from ingestd.api.sink import Sink
from ingestd.support.names import hint

__all__ = [
    "check_consumer", "check_entry_point", "check_hooks", "check_intake", "check_plugin_class", "check_sink",
    "check_sink_class", "check_transform",
]  # fmt: skip

_LABEL = re.compile(r"[a-z][a-z0-9-]{0,39}")

_SINK_METHODS = {"open": (), "write": ("batch",), "check": (), "close": ()}


def check_entry_point(point: EntryPoint, target: object) -> None:
    """Check that the object of an entry point can be a plugin at all. Raises `ConfigError`."""
    kind = target if isinstance(target, type) else type(target)
    cure = f'name the module instead, {point.name} = "{point.module}"'
    if issubclass(kind, Sink):
        raise ConfigError(
            f"its entry point is the sink {kind.__name__} itself; {cure}, and register the class there in"
            " register_sinks"
        )
    if issubclass(kind, Consumer):
        raise ConfigError(
            f"its entry point is the consumer {kind.__name__} itself; {cure}, and register an instance there in"
            " register_consumers"
        )
    if issubclass(kind, Options):
        raise ConfigError(f"its entry point is the options {kind.__name__}; {cure}, or the class with these options")
    if inspect.isroutine(target):
        raise ConfigError(f"its entry point is the function {target.__name__}; {cure}")


def check_plugin_class(plugin_class: type) -> None:
    """Check the `Options` and the constructor of a plugin class. Raises `ConfigError`."""
    _check_options(plugin_class)
    if getattr(plugin_class, "Options", None) is not None:
        _check_parameters(plugin_class, f"{plugin_class.__name__}.__init__", ("options",), is_bound=True)
    else:
        _check_parameters(plugin_class, f"{plugin_class.__name__}.__init__, without Options,", (), is_bound=True)


def check_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    """Check that a plugin implements at least one hook, and no unknown hook. Raises `ConfigError`."""
    known = _hook_names()
    callers = manager.get_hookcallers(plugin) or []
    for caller in callers:
        is_optional = all(impl.optionalhook for impl in caller.get_hookimpls() if impl.plugin is plugin)
        if caller.name not in known and not is_optional:
            raise ConfigError(f"unknown hook {caller.name!r}; {hint(caller.name, known)}")
    if not callers:
        functions = [name for name in dir(plugin) if inspect.isroutine(inspect.getattr_static(plugin, name, None))]
        unmarked = [name for name in functions if name in known]
        examples = f": {', '.join(unmarked)}" if unmarked else _misspelt_hook(functions, known)
        raise ConfigError(f"implements no hook; mark its functions with ingestd.api.hookimpl{examples}")


def check_sink_class(kind: object, sink_class: object) -> None:
    """Check the type and the class of a sink that a plugin registers. Raises `ConfigError`."""
    if not isinstance(kind, str):
        raise ConfigError(
            'register takes the type of the sink and then its class, as in register("shop", ShopSink);'
            f" the type given is {_kind_of(kind)}"
        )
    if not isinstance(sink_class, type) or not issubclass(sink_class, Sink):
        what = f"the instance of {_kind_of(type(sink_class))}" if isinstance(sink_class, Sink) else _kind_of(sink_class)
        raise ConfigError(f"sink type {kind}: register a subclass of ingestd.api.sink.Sink, not {what}")
    name = sink_class.__name__
    try:
        if sink_class.write is Sink.write:
            own = sorted({*dir(sink_class)} - {*dir(Sink)})
            near = difflib.get_close_matches("write", own, n=1) or [each for each in own if "write" in each.lower()]
            cure = f"rename {near[0]} to write" if near else "add `async def write(self, batch)`"
            raise ConfigError(f"{name} has no write; {cure}")
        for method, parameters in _SINK_METHODS.items():
            _check_coroutine_function(sink_class, method, parameters)
        if sink_class.buffering:  # the methods of other sinks may have any names
            if sink_class.flush is Sink.flush:
                raise ConfigError(f"{name} is buffering and has no flush; add `async def flush(self, span)`")
            _check_coroutine_function(sink_class, "flush", ("span",))
        _check_options(sink_class)
        _check_parameters(sink_class, f"{name}.__init__", ("name", "options"), is_bound=True)
    except ConfigError as error:
        raise ConfigError(f"sink type {kind}: {error}") from error


def check_sink(sink: Sink, name: str) -> None:
    """Check that the constructor of a sink has set its name and its options. Raises `ConfigError`."""
    missing = [each for each in ("name", "options") if not hasattr(sink, each)]
    class_name = _kind_of(type(sink))
    cure = f"call super().__init__(name, options) first in {type(sink).__name__}.__init__"
    if missing:
        raise ConfigError(f"{class_name} has no {' and no '.join(missing)}; {cure}")
    if sink.name != name:
        raise ConfigError(f"{class_name} does not have the name it was given; {cure}, and keep sink.name")


def check_transform(name: object, transform: object) -> None:
    """Check the name and the function of a transform that a plugin registers. Raises `ConfigError`."""
    if not isinstance(name, str) or not name:
        raise ConfigError(
            'register takes the name of the transform and then its function, as in register("without_email", change);'
            f" the name given is {_kind_of(name)}"
        )
    if not callable(transform):
        raise ConfigError(f"transform {name}: register a function, not {_kind_of(type(transform))}")
    if inspect.iscoroutinefunction(transform):
        raise ConfigError(f"transform {name}: register a plain function; a coroutine function cannot change a record")
    _check_parameters(transform, f"transform {name}", ("record",), is_bound=True)


def check_consumer(consumer: Consumer) -> None:
    """Check a consumer that a plugin registers. Raises `ConfigError`."""
    _check_instance(consumer, Consumer)
    if not isinstance(getattr(consumer, "name", None), str) or not consumer.name:
        raise ConfigError(f"the consumer {type(consumer).__name__} has no name; give it one that never changes")
    _check_coroutine_function(type(consumer), "process", ("records", "step"))


def check_intake(intake: Intake, others: Iterable[Intake]) -> None:
    """Check an intake that a plugin registers. Raises `ConfigError`."""
    _check_instance(intake, Intake)
    endpoint = getattr(intake, "endpoint", None)
    if not isinstance(endpoint, Endpoint):
        raise ConfigError(f"the intake {type(intake).__name__} has no endpoint; add `endpoint = Endpoint(…)`")
    taken = {each.value for each in (*Endpoint.BUILT_IN, Endpoint.IMPORT)} | {each.endpoint.value for each in others}
    if not _LABEL.fullmatch(endpoint.value) or endpoint.value in taken:
        raise ConfigError(
            f"the intake {type(intake).__name__}: its endpoint {endpoint.value!r} is taken or is no name; expected"
            " lower-case letters, digits and hyphens"
        )
    if not getattr(intake, "routes", ()):
        raise ConfigError(f"the intake {type(intake).__name__} has no routes; set `routes`")


def _check_instance(value: object, base: type) -> None:
    if isinstance(value, base):
        return
    if isinstance(value, type) and issubclass(value, base):
        raise ConfigError(f"register an instance, {value.__name__}(…), not the class {value.__name__}")
    raise ConfigError(f"register an instance of a subclass of {_kind_of(base)}, not {_kind_of(value)}")


def _check_coroutine_function(owner: type, method: str, parameters: Collection[str]) -> None:
    function = getattr(owner, method)
    form = f"`async def {method}({', '.join(['self', *parameters])})`"
    # A decorator may wrap a coroutine function in a plain function, or the reverse.
    functions = [function, inspect.unwrap(function)] if callable(function) else []
    if any(map(inspect.isasyncgenfunction, functions)):
        raise ConfigError(f"{owner.__name__}.{method} is a generator; take the yield out of {form}")
    if not any(map(inspect.iscoroutinefunction, functions)):
        raise ConfigError(f"{owner.__name__}.{method} is not a coroutine function; write {form}")
    is_bound = isinstance(inspect.getattr_static(owner, method), staticmethod | classmethod)
    _check_parameters(function, f"{owner.__name__}.{method}", parameters, is_bound=is_bound)


def _check_parameters(function: Callable[..., Any], name: str, parameters: Collection[str], *, is_bound: bool) -> None:
    """Check that a function accepts these arguments by position."""
    try:
        # The parameters of a decorator's wrapper count, because the wrapper may add arguments.
        signature = inspect.signature(function, follow_wrapped=False)
    except ValueError:  # a class written in C may have no signature
        return
    given = parameters if is_bound else ("self", *parameters)
    try:
        signature.bind(*given)
    except TypeError as error:
        expected = ", ".join(["self", *parameters])
        raise ConfigError(f"{name} must take ({expected}): {error}") from error


def _check_options(owner: type) -> None:
    options = getattr(owner, "Options", None)
    if options is None and not issubclass(owner, Sink):
        return
    name = f"{owner.__name__}.Options"
    if not isinstance(options, type) or not issubclass(options, Options):
        raise ConfigError(f"{name} is not a subclass of ingestd.api.options.Options; make it one")
    try:
        get_type_hints(options, include_extras=True)
    except Exception as error:
        raise ConfigError(f"the types of {name} cannot be read: {error!r}; import them where the class is") from error


def _hook_names() -> list[str]:
    marker = f"{HOOK_NAMESPACE}_spec"
    return sorted(name for name, each in vars(hookspecs).items() if hasattr(each, marker))


def _misspelt_hook(functions: Iterable[str], known: Collection[str]) -> str:
    for name in functions:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near and not name.startswith("_"):
            return f"; rename {name} to {near[0]}"
    return ""


def _kind_of(value: object) -> str:
    """The text for a value in a message: the name of a class, or the name of the class of another value."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return "None" if value is None else f"a value of the type {type(value).__name__}"
