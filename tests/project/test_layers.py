"""Imports point from upper layers to lower layers.

Built-in plugins import `ingestd.api` and `ingestd.support`, other plugins `ingestd.api` alone, extensions all of the
kernel.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from ingestd.api import hookspecs
from ingestd.hooks.loader import _ExtensionSpecs

ROOT = Path(__file__).parents[2]

LAYERS = [
    ["support"],
    ["api"],
    ["scheduling"],
    ["config", "validation", "hooks"],
    ["consumers", "delivery", "storage"],
    ["observability"],
    ["pipeline"],
    ["http"],
    ["daemon"],
    ["cli"],
    ["__main__"],
]
"""The packages of `ingestd/`, bottom layer first. Packages of one layer may import each other, but not in a circle."""


def modules(folder: str, package: str) -> dict[str, Path]:
    """Every module below a folder by its dotted name."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT / folder).with_suffix("").parts
        found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


CORE = modules("ingestd", "ingestd")
PLUGINS = modules("plugins", "ingestd.plugins")
SUITES = modules("testing", "ingestd.testing")
EVERY = CORE | PLUGINS | SUITES


def layer_of(module: str) -> int:
    """The index of the module's layer. `ingestd` itself, with the version, is below all."""
    if module == "ingestd":
        return -1
    (layer,) = [index for index, packages in enumerate(LAYERS) if module.split(".")[1] in packages]
    return layer


@cache
def imports(module: str) -> Sequence[tuple[int, str]]:
    """The number of leading dots and the absolute name of each import that runs."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[tuple[int, str]]:
    path = EVERY[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in running(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *(node.module.split(".") if node.module else [])])
            for alias in node.names:  # `from ingestd.api import times` imports a module, `… import hookimpl` a name
                whole = f"{source}.{alias.name}"
                yield node.level, whole if whole in EVERY else source


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node except the code under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from running(node)


def test_the_root_has_few_entries() -> None:
    # An update of a checkout leaves empty folders of modules that have moved.
    entries = {
        path.name
        for path in (ROOT / "ingestd").iterdir()
        if not path.is_symlink() and (path.is_file() or any(path.rglob("*.py")))
    }
    assert len(entries) <= 17
    assert {path.removesuffix(".py") for path in entries} == {
        *(package for layer in LAYERS for package in layer), "__init__", "py.typed",
    }  # fmt: skip


def test_each_package_of_the_kernel_and_each_plugin_has_tests_under_its_name() -> None:
    tests = ROOT / "tests"
    folders = {path.name for path in (tests / "kernel").iterdir() if any(path.rglob("test_*.py"))}
    assert folders == {package for layer in LAYERS for package in layer} - {"__main__"} | {"testing"}
    plugins = [*entry_points(group="ingestd"), *entry_points(group="ingestd.extensions")]
    ours = [each.module.removesuffix(".plugin") for each in plugins if each.module.startswith("ingestd.plugins.")]
    assert ours
    for module in ours:
        *parents, name = module.split(".")[1:]
        folder = tests.joinpath(*parents)
        assert [*folder.glob(f"{name}/test_*.py"), *folder.glob(f"test_{name}*.py")], f"{module} has no tests"


def imports_of(modules: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    """Each import of these modules: module, leading dots, name. A test for each module takes longer than its check."""
    names = [*modules]
    assert names
    return ((module, level, name) for module in names for level, name in imports(module))


def test_a_core_module_imports_nothing_from_upper_layers() -> None:
    for module, level, name in imports_of(CORE):
        if name.partition(".")[0] == "ingestd":
            assert layer_of(name) <= layer_of(module), f"{module} imports {name}"
            assert level <= 1, f"{module} imports {name} by dots: another package is named whole"


def test_a_core_module_imports_no_plugin_and_names_none() -> None:
    assert not [found for found in imports_of(CORE) if found[2].startswith("ingestd.plugins")]
    for module, path in CORE.items():
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not [text for text in texts if isinstance(text, str) and "ingestd.plugins" in text], module


EXTENSIONS = {point.value for point in entry_points(group="ingestd.extensions")}
"""Packages in the tree that may read all of the kernel, such as the commands that move data."""


def is_of_extension(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in EXTENSIONS)


def test_an_extension_imports_the_kernel_and_itself() -> None:
    for module, level, name in imports_of(each for each in PLUGINS if is_of_extension(each)):
        own = ".".join(module.split(".")[:3])
        if name.startswith("ingestd.plugins"):
            assert level, f"{module} imports {name}"
            assert name.startswith(own), f"{module} imports {name}"


def test_a_plugin_imports_the_api_and_other_plugins_relatively() -> None:
    for module, level, name in imports_of(each for each in PLUGINS if not is_of_extension(each)):
        if level:
            assert name.startswith("ingestd.plugins"), f"{module} imports {name}"
            assert not is_of_extension(name), f"{module} imports {name}"
        elif name.partition(".")[0] == "ingestd":
            assert name.split(".")[1] in {"api", "support"}, f"{module} imports {name}"


def test_a_suite_for_authors_names_no_plugin() -> None:
    assert not [found for found in imports_of(SUITES) if found[2].startswith("ingestd.plugins")]


def test_the_page_for_authors_lists_the_modules_that_are_promised_and_no_helpers() -> None:
    page = (ROOT / "docs" / "hooks.md").read_text()
    listed = re.findall(r"`(\w+)`", page.partition("The docstring of each module")[2].partition("\n## ")[0])
    assert listed == sorted({module.split(".")[2] for module in CORE if module.startswith("ingestd.api.")})
    assert len(listed) <= 21
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]:
        assert "ingestd.support" not in path.read_text() or path.name == "architecture.md", path


def test_no_module_imports_another_that_imports_it() -> None:
    """An import of a module begins with the packages around it, so any module can be the first to be imported."""
    needs = {module: {*_begun(module)} for module in EVERY}
    while free := [module for module, names in needs.items() if not names & {*needs}]:
        for module in free:
            del needs[module]
    assert not needs


def _begun(module: str) -> Iterator[str]:
    """The modules that an import of the module begins, but for the packages around it, which have begun before."""
    for _, name in imports(module):
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            each = ".".join(parts[:count])
            if each in EVERY and not f"{module}.".startswith(f"{each}."):
                yield each


def test_no_package_imports_another_that_imports_it() -> None:
    packages = [package for layer in LAYERS for package in layer]
    needs: dict[str, set[str]] = {package: set() for package in packages}
    for module in CORE:
        if module != "ingestd":
            package = module.split(".")[1]
            needs[package] |= {name.split(".")[1] for _, name in imports(module) if name.startswith("ingestd.")} - {
                package
            }
    while free := [package for package, names in needs.items() if not names & {*needs}]:
        for package in free:
            del needs[package]
    assert not needs


def test_the_drawing_shows_the_kernel_its_seams_and_who_uses_them() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = page.partition("\n ingestd/: the kernel")[2].partition("```")[0].splitlines()[2:]
    kernel = [row.split()[0] for row in rows if row[1] != " "]
    layers = [index for name in kernel for index, packages in enumerate(LAYERS) if name in packages]
    assert sorted(kernel) == sorted(package for layer in LAYERS[:-1] for package in layer)
    assert layers == sorted(layers, reverse=True)
    seams, users = set(), set()
    for row in rows:
        _, arrow, rest = row.partition("◀── ")
        seam, _, named = rest.partition(" ──")
        if arrow:
            seams.update(re.findall(r"register_\w+|make_\w+", seam))
            users.update(re.findall(r"\+?\b[a-z_]+\b", re.sub(r"\(.*\)", "", named)))
    offered = {name for name in {*vars(hookspecs), *vars(_ExtensionSpecs)} if name.startswith(("register_", "make_"))}
    assert seams == offered
    packages = {point.value.split(".")[2].partition(":")[0]: "" for point in entry_points(group="ingestd")
                if point.value.startswith("ingestd.plugins.")}  # fmt: skip
    packages |= {point.value.split(".")[2]: "+" for point in entry_points(group="ingestd.extensions")}
    assert {mark + name for name, mark in packages.items()} <= users
