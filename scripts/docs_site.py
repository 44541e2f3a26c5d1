"""Builds the documentation as a site in site/; `make docs` runs it.

The pages are those of docs/ and the README as the first one. Nine pages are made of the code: every option
(conf/ingestd.toml), every command (the parser of the command line), every answer (the OpenAPI document), the contract
of every hook (ingestd/api/hookspecs.py) with its example (examples/hooks), every view of a warehouse with its columns
(plugins/models), every alert (conf/prometheus/ingestd.alerts.yml), every function and option of the browser client
(clients/browser/ingestd.d.ts), the data of the operators' page (plugins/console), and all periodic work.
A link or an anchor that leads nowhere fails the build.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ingestd import api
from ingestd.api import HOOK_NAMESPACE, hookspecs
from ingestd.plugins.console.data_routes import DeadLettersHandler, JourneyHandler, SalesHandler
from ingestd.plugins.console.page_routes import EventsHandler, StatusHandler
from ingestd.plugins.models.catalogue import all_models
from ingestd.plugins.models.dialects import Postgres
from ingestd.plugins.models.model import Column
from ingestd.validation.schema_files import read_schemas
from scripts.man import leaves, whole_parser

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
"""The pages that the site is built from, as zensical.toml says."""

_ALERTS = ROOT / "conf" / "prometheus" / "ingestd.alerts.yml"
_BROWSER = ROOT / "clients" / "browser" / "ingestd.d.ts"
_PERIODIC = ROOT / "ingestd" / "support" / "periodic.py"
_MADE_OF = {
    ROOT / "conf" / "ingestd.toml": "options.md",
    ROOT / "ingestd" / "api" / "hookspecs.py": "contracts.md",
    ROOT / "plugins" / "models" / "catalogue.py": "views.md",
    ROOT / "examples" / "warehouse" / "questions.sql": "views.md",
    ROOT / "plugins" / "console" / "data_routes.py": "page_data.md",
    ROOT / "plugins" / "console" / "page_routes.py": "page_data.md",
    _ALERTS: "alerts.md",
    _BROWSER: "browser.md",
    _PERIODIC: "times.md",
}
"""Files that pages link to, and the page that is made of them."""

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)(#[^)]*)?\)")
_OPTION = re.compile(r"(?:# )?(\w+) = (.+)")


def main() -> int:
    make_pages(PAGES)
    build: list[str | Path] = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    return subprocess.run(build, cwd=ROOT, check=False).returncode  # noqa: S603 - the command is the project's own


def make_pages(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    shutil.copy(ROOT / "README.md", folder / "index.md")
    reference = folder / "reference"
    reference.mkdir()
    for made in (options, commands, answers, contracts, views, alerts, browser, page_data, times):
        (reference / f"{made.__name__}.md").write_text(made())
    for page in folder.rglob("*.md"):
        if page.parent != reference:
            page.write_text(_LINK.sub(partial(_linked, page=page, folder=folder), page.read_text()))


def _linked(link: re.Match[str], page: Path, folder: Path) -> str:
    """The link as the site has it. A file of the project that is no page of the site is only named."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if target.startswith(("https:", "http:")):
        return link[0]
    source = ROOT if page.name == "index.md" else (ROOT / "docs" / page.relative_to(folder)).parent
    meant = (source / target).resolve()
    if meant.parent == ROOT / "examples" / "hooks":
        meant, anchor = ROOT / "docs" / "reference" / "contracts.md", f"#{meant.stem}"
    if meant in _MADE_OF:
        meant = ROOT / "docs" / "reference" / _MADE_OF[meant]
    if not meant.is_relative_to(ROOT / "docs"):
        return text if "`" in text else f"`{meant.relative_to(ROOT)}`"
    return f"[{text}]({os.path.relpath(folder / meant.relative_to(ROOT / 'docs'), page.parent)}{anchor})"


def options() -> str:
    """Every option with its default, by section: conf/ingestd.toml as a page."""
    lines = ["# Options", ""]
    about: list[str] = []
    names: list[str] = []
    is_example = False

    def end_group() -> None:
        if names:
            lines.extend(names)
        if about:
            lines.extend(["", f"{'  ' if names else ''}{' '.join(about)}", ""])
        about.clear()
        names.clear()

    for line in [*(ROOT / "conf" / "ingestd.toml").read_text().splitlines(), ""]:
        option = _OPTION.fullmatch(line)
        if section := re.fullmatch(r"(?:# )?(\[+[\w.\"]+\]+)", line):
            end_group()
            lines.extend([f"## `{section[1]}`", ""])
            is_example = line.startswith("#")
        elif option:
            unset = " (not set)" if line.startswith("#") and not is_example else ""
            names.append(f"- **`{option[1]}`** = `{option[2]}`{unset}")
        elif line.startswith("#"):
            if names:
                end_group()
            about.append(line.lstrip("# "))  # a comment within a section that is one itself begins with two
        elif not line:
            end_group()
    return "\n".join(lines)


def commands() -> str:
    """The help of every command."""
    lines = ["# Commands", ""]
    for parser in leaves(whole_parser()):
        lines.extend([f"## {parser.prog}", "", "```text", parser.format_help().strip(), "```", ""])
    return "\n".join(lines)


def contracts() -> str:
    """The contract of every hook with advice and an example, and what each module of ingestd.api is for."""
    lines = ["# Contracts of the hooks", "", "[hooks.md](../hooks.md) has the rules for all hooks.", ""]
    for name, hook in vars(hookspecs).items():
        if hasattr(hook, f"{HOOK_NAMESPACE}_spec"):
            signature = str(inspect.signature(hook)).replace("'", "")
            example = (ROOT / "examples" / "hooks" / f"{name}.py").read_text()
            advice = ast.get_docstring(tree := ast.parse(example)) or ""
            code = "\n".join(example.splitlines()[tree.body[0].end_lineno if advice else 0 :])
            lines.extend([f"## {name}", "", f"`{name}{signature}`", "", inspect.getdoc(hook) or "", "", advice, ""])
            lines.extend(["```python", code.strip(), "```", ""])
    lines.extend(["## Modules of ingestd.api", ""])
    for module in sorted(pkgutil.iter_modules(api.__path__), key=lambda each: each.name):
        about = importlib.import_module(f"{api.__name__}.{module.name}").__doc__ or ""
        lines.append(f"- `{module.name}`: {about.partition(chr(10))[0]}")
    return "\n".join(lines)


def views() -> str:
    """Every view of a warehouse with its columns, also of the built-in event keys, and questions to the views."""
    models = all_models(read_schemas(None), Postgres("ingestd_records"))
    questions = (ROOT / "examples" / "warehouse" / "questions.sql").read_text()
    common = next(each.columns for each in models if each.name == "page_view")
    items = next(each.columns[:9] for each in models if each.name == "order_completed_products")
    lines = ["# Views of a warehouse", "", "[models.md](../models.md) describes kinds and names.", ""]
    lines += ["## Ten questions", "", "```sql", questions.rstrip(), "```", ""]
    lines += ["## Every event key", "", "A view of an event key has these columns, and then those below its name.", ""]
    lines += [*_columns(common), "## Every array of objects", ""]
    lines += ["A view of an array has these columns, and then the members of an element.", "", *_columns(items)]
    for model in models:
        shared = next((part for part in (common, items) if [*model.columns[: len(part)]] == [*part]), ())
        lines += [f"## {model.name}", "", f"{model.description.removesuffix('.')}.", ""]
        lines += _columns(model.columns[len(shared) :])
    return "\n".join(lines)


def _columns(columns: Sequence[Column]) -> list[str]:
    rows = [f"| `{each.name}` | {each.kind} | {_cell(each.description)} |" for each in columns]
    return ["| column | kind | content |", "|---|---|---|", *rows, ""] if rows else []


def alerts() -> str:
    """Every alert, and when it fires: the comments of the rules."""
    lines = ["# Alerts", "", "[monitoring.md](../monitoring.md) says what to do about each.", ""]
    lines += ["| alert | severity | fires | for |", "|---|---|---|---|"]
    for part in _ALERTS.read_text().split("      # Fires ")[1:]:
        fires, name, rule = re.split(r"\. - alert: (\w+)", re.sub(r"\n +(?:# )?", " ", part), maxsplit=1)
        (long,) = re.findall(r" for: (\w+) ", rule) or [""]
        severity = rule.partition(" severity: ")[2].split()[0]
        lines.append(f"| [{name}](../monitoring.md#{name.lower()}) | {severity} | {fires} | {long} |")
    return "\n".join(lines)


def page_data() -> str:
    """The answers of the operators' page for scripts: what the handlers of its routes say."""
    lines = ["# Data of the operators' page", "", "[operators-page.md](../operators-page.md) describes the page."]
    for handler in (StatusHandler, SalesHandler, EventsHandler, JourneyHandler, DeadLettersHandler):
        paths, _, about = (inspect.getdoc(handler) or "").partition(": ")
        lines += ["", f"## {paths}", "", about[0].upper() + about[1:]]
    return "\n".join(lines)


def browser() -> str:
    """The functions and options of the browser client: its declarations for TypeScript."""
    lines = [
        "# Functions and options of the browser client",
        "",
        "[browser-client.md](../browser-client.md) has its rules.",
    ]
    return "\n".join([*lines, "", "```ts", _BROWSER.read_text().rstrip(), "```"])


def times() -> str:
    """Every time of a daemon: the fields of `Timing` with their comments."""
    about = (
        "A daemon does this work again and again. The pause follows the end of a step. A jump of the system's clock "
        "changes no pause. A daemon on Redis also beats (`redis_heartbeat`), and tries each second to open partitions "
        "that were away at its start."
    )
    lines = ["# Periodic work", "", about, "", "| name | pause in seconds | step |", "|---|---|---|"]
    for line in _PERIODIC.read_text().splitlines():
        if time := re.fullmatch(r"    (\w+): float = ([\d.]+)  # (.+)", line):
            lines.append(f"| `{time[1]}` | {time[2]} | {_cell(time[3])} |")
        elif line == "    # Further times":
            lines.extend(["", "## Further times", "", "| name | seconds | meaning |", "|---|---|---|"])
    return "\n".join(lines)


def answers() -> str:
    """Every endpoint with its answers, and every event key's members: docs/openapi.json as a page."""
    document = msgspec.json.decode((ROOT / "docs" / "openapi.json").read_bytes())
    lines = ["# Endpoints and their answers", "", f"{document['info']['description']}", ""]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines.extend(
                [f"## {method.upper()} {path}", "", f"{operation['summary']}.", "", "| status | |", "|---|---|"]
            )
            lines.extend(
                f"| {status} | {_cell(answer['description'])} |" for status, answer in operation["responses"].items()
            )
            lines.append("")
    lines.extend(_members(document["components"]["schemas"]))
    return "\n".join(lines)


def _members(schemas: dict[str, Any]) -> Iterator[str]:
    for name, schema in schemas.items():
        if properties := schema.get("properties"):
            yield from [f"## {name}", "", "| member | type | |", "|---|---|---|"]
            required = schema.get("required", [])
            for member, rule in properties.items():
                about = " ".join(filter(None, ["Required." if member in required else "", rule.get("description", "")]))
                yield f"| `{member}` | {_type(rule)} | {_cell(about)} |"
            yield ""


def _type(rule: dict[str, Any]) -> str:
    if "$ref" in rule:
        name = rule["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    kinds = rule.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


def _cell(text: str) -> str:
    return re.sub(r"\n(- )?", "<br>", text.removeprefix("- ").strip()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
