"""The holder of the event loop: the plugin, sink or consumer that a thread's stack shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import NamedTuple, Protocol

from ingestd.api.consumer import Consumer
from ingestd.api.sink import Sink

__all__ = ["Holder", "LoadedPlugin", "find_holder", "plugin_modules"]

_HOOKS = "ingestd.hooks.caller"


class LoadedPlugin(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...


class Holder(NamedTuple):
    """`name` is a plugin's name, `sink:NAME`, or a consumer's name. `frame` distinguishes calls."""

    name: str
    text: str
    """The name in a log line."""
    function: str
    module: str
    line: int
    frame: FrameType


def plugin_modules(plugins: Iterable[LoadedPlugin]) -> Mapping[str, str]:
    """Plugin names by module and by top-level package."""
    found: dict[str, str] = {}
    for plugin in plugins:
        module = plugin.source.partition(":")[0]
        found[module] = plugin.name
        package = module.partition(".")[0]
        if package != "ingestd":
            found.setdefault(package, plugin.name)
    return found


def find_holder(innermost: FrameType | None, modules: Mapping[str, str]) -> Holder | None:
    """The holder in a thread's stack, None for ingestd itself and libraries. `plugin_modules` makes `modules`.

    A hook takes precedence over a sink or consumer. These take precedence over a plugin's other code, such as timers.
    """
    sink = consumer = other = called = None
    for frame in _outwards(innermost):
        module = frame.f_globals.get("__name__", "")
        if module == _HOOKS:
            names = frame.f_locals
            plugin = names.get("plugin")
            if called is not None and isinstance(plugin, str):
                return _holder(called, plugin, f"plugin {plugin}", str(names.get("hook", frame.f_code.co_name)))
            continue
        called = frame
        owner = _owner(frame)
        if isinstance(owner, Sink):
            sink = _holder(frame, f"sink:{owner.name}", f"sink:{owner.name}")
        elif isinstance(owner, Consumer):
            consumer = _holder(frame, owner.name, owner.name)
        else:
            plugin = _plugin_of(module, modules)
            other = other if plugin is None else _holder(frame, plugin, f"plugin {plugin}")
    return sink or consumer or other


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _owner(frame: FrameType) -> Sink | Consumer | None:
    """The sink or consumer whose method this frame runs. None while it is being made, because it has no name yet."""
    code = frame.f_code
    is_method = code.co_argcount > 0 and code.co_varnames[0] == "self"
    owner = frame.f_locals.get("self") if is_method else None
    return owner if isinstance(owner, Sink | Consumer) and hasattr(owner, "name") else None


def _holder(frame: FrameType, name: str, text: str, function: str | None = None) -> Holder:
    module = frame.f_globals.get("__name__", "")
    return Holder(name, text, function or frame.f_code.co_name, module, frame.f_lineno, frame)


def _plugin_of(module: str, modules: Mapping[str, str]) -> str | None:
    while module:
        if module in modules:
            return modules[module]
        module = module.rpartition(".")[0]
    return None
