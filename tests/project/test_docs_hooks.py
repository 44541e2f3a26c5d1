"""docs/hooks.md and examples/hooks have the hooks of ingestd/api/hookspecs.py, and the examples are plugins."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest

from ingestd.api import hookspecs
from ingestd.api.backend import Backend
from ingestd.api.consumer import Consumer
from ingestd.api.hookspecs import HOOK_NAMESPACE
from ingestd.api.intake import Intake, Translation
from ingestd.api.sink import Sink
from ingestd.cli.command_line import CommandLine
from ingestd.hooks.caller import register_all

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "hooks.md").read_text()
LISTED = re.findall(r"\[`(\w+)`\]\(\.\./examples/hooks/\1\.py\)", TEXT)
EXAMPLES = {path.stem: path.read_text() for path in (ROOT / "examples" / "hooks").glob("*.py")}
_PARTS = Sink | Consumer | Intake | Translation
"""Classes of an example that are no plugins themselves."""


def specified() -> dict[str, str]:
    """Each hook with its signature."""
    return {
        name: str(inspect.signature(function)).replace("'", "")
        for name, function in vars(hookspecs).items()
        if hasattr(function, f"{HOOK_NAMESPACE}_spec")
    }


@pytest.fixture
def manager() -> pluggy.PluginManager:
    made = pluggy.PluginManager(HOOK_NAMESPACE)
    made.add_hookspecs(hookspecs)
    return made


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """An importable module for an example, in which its annotations are looked up."""
    made = ModuleType("example_of_a_hook")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def register(manager: pluggy.PluginManager, module: ModuleType, source: str) -> set[str]:
    """Run an example, register its plugin, and return the hooks that it implements."""
    exec(compile(source, module.__name__, "exec", dont_inherit=True), vars(module))
    plugins: list[object] = [module]
    for made in vars(module).values():
        if inspect.isclass(made) and made.__module__ == module.__name__ and not issubclass(made, _PARTS):
            factory: Any = made
            plugins.append(factory(factory.Options()))
    for plugin in plugins:
        manager.register(plugin)
    manager.check_pending()
    return {caller.name for plugin in plugins for caller in manager.get_hookcallers(plugin) or []}


def test_every_hook_is_documented_with_an_example_and_every_documented_hook_exists() -> None:
    assert [*specified()] == LISTED
    assert specified().keys() == EXAMPLES.keys()


def test_every_hook_is_looked_up_by_its_name_and_called() -> None:
    paths = [
        path for folder in ("ingestd", "plugins/console", "plugins/tools") for path in (ROOT / folder).rglob("*.py")
    ]
    of_hooks = "".join(path.read_text() for path in paths if path.name != "hookspecs.py")
    callers = "".join(path.read_text() for path in paths if path.parent.name != "hooks")
    assert [name for name in specified() if f'"{name}"' not in of_hooks] == []
    called = [name for name in specified() if not name.startswith("register_")]  # `register_all` calls the others
    assert [name for name in called if not re.search(rf"hooks(?:\(\))?\.{name}\b", callers)] == []


@pytest.mark.parametrize("hook", EXAMPLES)
def test_the_example_of_a_hook_implements_it(
    hook: str, manager: pluggy.PluginManager, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert register(manager, module, EXAMPLES[hook]) == {hook}
    stores: dict[str, Any] = {}
    sinks: dict[str, type[Sink]] = {}
    consumers: list[Consumer] = []
    register_all(manager, "register_stores", stores.__setitem__)
    register_all(manager, "register_sinks", sinks.__setitem__)
    register_all(manager, "register_consumers", consumers.append)
    intakes: list[Intake] = []
    register_all(manager, "register_intakes", intakes.append)
    register_all(manager, "register_commands", CommandLine())
    for scheme, factory in stores.items():
        assert isinstance(factory(f"{scheme}:", Path("/")), Backend)
    for kind, sink in sinks.items():
        assert sink(kind, sink.Options()).name == kind
    assert all(consumer.name for consumer in consumers)
    assert all(intake.routes for intake in intakes)
    registers = {"register_stores", "register_sinks", "register_consumers", "register_intakes"}
    assert bool(stores or sinks or consumers or intakes) == (hook in registers)


def test_the_plugin_that_the_page_shows_can_be_registered(manager: pluggy.PluginManager, module: ModuleType) -> None:
    (shown,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert register(manager, module, shown) == {"enrich"}


def test_the_page_lists_the_hooks_of_identify_requests() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", TEXT, re.MULTILINE)
    path = [name for name, parameters in specified().items() if re.search("event: Event|request: Request", parameters)]
    assert [name for name, _, _ in rows] == path
