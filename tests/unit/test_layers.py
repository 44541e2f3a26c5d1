"""The direction of imports: values, contracts, machinery, http, the top; plugins on what is public alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAYERS: dict[str, list[str]] = {
    "values": [
        "addresses", "backoff", "distribution", "domains", "errors", "events", "ids", "nearest", "outcomes", "output",
        "records", "terminal", "times", "unusable_ids",
    ],
    "contracts": [
        "options", "options.hosts", "options.types", "options.secret", "config", "config.overrides", "store",
        "person", "journal", "findings", "backend", "sink", "consumer", "panels", "hookspecs",
    ],
    "machinery": [
        "apart", "record_selection", "event_boundaries", "hooks", "loader", "plugin_validation", "schema_draft",
        "schema_files", "schema_places", "validation", "consumers", "consumers.ahead", "consumers.attempts",
        "consumers.runner", "consumers.status", "delivery", "delivery.consumer", "delivery.dead_letter_log",
        "delivery.dead_letters", "delivery.evidence", "delivery.filters", "delivery.options", "delivery.orders",
        "delivery.progress", "delivery.status", "delivery.writer", "retention", "loop_holder", "loop_monitor",
        "store_loss", "pipeline", "admission", "batch_parser", "reading", "resolving", "recalling", "storing",
        "members", "stretches", "one_by_one", "together", "batches", "chains", "pace", "room", "turns", "failures",
        "answers", "metrics", "metrics.counts", "metrics.exposition", "metrics.loop_delay", "metrics.refusals",
        "logs", "logs.formats", "logs.message_kinds", "logs.recent", "logs.redaction", "overview", "overview.asking",
        "overview.history", "overview.parts", "activation", "binding", "notify", "run_directory", "run_file",
        "file_limits", "memory", "stopping", "checking", "checking.config_faults", "checking.report", "forgetting",
        "forgetting.dead_letters", "forgetting.readonly", "forgetting.traces", "unusable_id_reports",
    ],
    "http": [
        "page", "http", "http.access", "http.accepting", "http.app", "http.body", "http.client", "http.connections",
        "http.cors", "http.eviction", "http.fast", "http.fast.body", "http.fast.connection", "http.fast.grammar",
        "http.fast.headers", "http.fast.response", "http.fast.server", "http.header_names", "http.host", "http.ingest",
        "http.listener", "http.ops", "http.own_hosts", "http.peers", "http.servers", "http.stream", "http.target",
        "http.tasks", "http.terms",
    ],
    "top": [
        "backends", "generation", "reload", "running_daemons", "reload_command", "server", "completion_command",
        "config_commands", "export_command", "plugin_commands", "forgetting.command", "checking.store",
        "checking.command", "sink_commands", "sink_commands.durable", "sink_commands.letters",
        "sink_commands.moments", "sink_commands.names", "sink_commands.pausing", "sink_commands.progress_bar",
        "sink_commands.replay", "sink_commands.running", "sink_commands.status", "unit_commands", "commands",
        "command_line", "cli", "__main__",
    ],
}  # fmt: skip
# Not on the way of an event: the name every plugin begins with, and what plugin authors test with.
BESIDE = {"": "contracts", "testing": "top"}

PUBLIC = {"ingestd"} | {f"ingestd.{name}" for layer in ("values", "contracts") for name in LAYERS[layer]}


def modules(folder: str, package: str) -> dict[str, Path]:
    """Every module below a folder by its dotted name."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT / folder).with_suffix("").parts
        found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


CORE = modules("ingestd", "ingestd")
PLUGINS = modules("plugins", "ingestd.plugins")
EVERY = CORE | PLUGINS


def layer_of(module: str) -> int:
    name = module.removeprefix("ingestd").removeprefix(".")
    top = name.partition(".")[0]
    layers = [layer for layer, names in LAYERS.items() if name in names] or [BESIDE[top]]
    return [*LAYERS].index(layers[0])


def imports(module: str) -> Iterator[tuple[int, str]]:
    """How many dots it begins with, and the absolute name, of each import that runs."""
    path = EVERY[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in running(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *(node.module.split(".") if node.module else [])])
            for alias in node.names:  # `from . import times` imports a module, `from . import __version__` a name
                whole = f"{source}.{alias.name}"
                yield node.level, whole if whole in EVERY else source


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from running(node)


def test_every_core_module_has_its_layer() -> None:
    named = {f"ingestd.{name}" for names in LAYERS.values() for name in names}
    beside = {module for module in CORE if module == "ingestd" or module.split(".")[1] in BESIDE}
    assert named | beside == {*CORE}


@pytest.mark.parametrize("module", CORE)
def test_a_core_module_imports_only_from_its_layer_and_those_before_it(module: str) -> None:
    for _, name in imports(module):
        if name.partition(".")[0] == "ingestd" and name != "ingestd":
            assert layer_of(name) <= layer_of(module), f"{module} imports {name}"
            assert module.startswith("ingestd.testing") or not name.startswith("ingestd.testing")


@pytest.mark.parametrize("module", CORE)
def test_a_core_module_imports_no_plugin_and_names_none(module: str) -> None:
    assert not [name for _, name in imports(module) if name.startswith("ingestd.plugins")]
    texts = {node.value for node in ast.walk(ast.parse(CORE[module].read_text())) if isinstance(node, ast.Constant)}
    assert not [text for text in texts if isinstance(text, str) and "ingestd.plugins" in text]


@pytest.mark.parametrize("module", PLUGINS)
def test_a_plugin_imports_public_names_and_other_plugins_relatively(module: str) -> None:
    for level, name in imports(module):
        if level:
            assert name.startswith("ingestd.plugins"), f"{module} imports {name}"
        elif name.partition(".")[0] == "ingestd":
            assert name in PUBLIC, f"{module} imports {name}"


def test_no_module_imports_another_that_imports_it() -> None:
    needs = {module: {name for _, name in imports(module) if name in EVERY and name != module} for module in EVERY}
    needs = {module: names - {"ingestd"} for module, names in needs.items() if module != "ingestd"}
    while free := [module for module, names in needs.items() if not names & {*needs}]:
        for module in free:
            del needs[module]
    assert not needs
