"""`ingestd plugins list`: the enabled plugins, their additions and their origin."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Shop, run_ingestd
from tests.support.distribution import write_distribution
from tests.support.forked import INGESTD

TOOLS = """
    import ingestd.api
    from ingestd.api.sink import Sink

    class Mirror(Sink):
        async def write(self, batch):
            pass

    class Tools:
        @ingestd.api.hookimpl
        def register_sinks(self, register):
            register("mirror", Mirror)
            register("echo", Mirror)

        @ingestd.api.hookimpl
        def register_stores(self, register):
            register("vault", None)

        @ingestd.api.hookimpl
        def filter_event(self):
            return None
"""

UNASKED = "raise RuntimeError('imported')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two third-party plugins, beside the installed ingestd."""
    folder = write_distribution(
        tmp_path_factory.mktemp("site"),
        "shop-tools",
        version="2.5",
        modules={"shop_tools": TOOLS, "shop_unasked": UNASKED},
        plugins={"tools": "shop_tools:Tools", "unasked": "shop_unasked"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
        yield folder


def shop_with(folder: Path, *plugins: str, **tables: str) -> Shop:
    enabled = json.dumps([*plugins, "keys", "session"])
    return Shop(folder, {"plugins": f"enabled = {enabled}", **tables})


def listed(shop: Shop) -> dict[str, dict[str, Any]]:
    """The listed plugins by name, in order."""
    rows = [json.loads(line) for line in shop.command("plugins", "list", "--json").splitlines()]
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row for row in rows}


def columns(shop: Shop) -> list[list[str]]:
    return [re.split(r" {2,}", line) for line in shop.command("plugins", "list").splitlines()]


def test_a_third_party_plugin_is_listed_with_all_its_additions(site: Path, tmp_path: Path) -> None:
    assert listed(shop_with(tmp_path, "tools"))["tools"] == {
        "name": "tools",
        "distribution": "shop-tools",
        "version": "2.5",
        "source": "shop_tools:Tools",
        "file": str(site / "shop_tools.py"),
        "sinks": ["echo", "mirror"],
        "stores": ["vault"],
        "hooks": ["filter_event", "register_sinks", "register_stores"],
    }


def test_built_in_plugins_are_listed_like_others(tmp_path: Path) -> None:
    plugins = listed(Shop(tmp_path))
    assert {plugin["distribution"] for plugin in plugins.values()} == {"ingestd"}
    assert plugins["sqlite"]["stores"] == ["sqlite"]
    assert plugins["redis"]["stores"] == ["redis", "redis+cluster", "rediss", "rediss+cluster", "unix"]
    assert plugins["jsonl"]["sinks"] == ["jsonl"]
    assert (plugins["keys"]["sinks"], plugins["keys"]["stores"]) == ([], [])
    for plugin in plugins.values():
        assert Path(plugin["file"]).is_file()
        module = plugin["source"].partition(":")[0].split(".")
        assert module[-1] in {Path(plugin["file"]).stem, Path(plugin["file"]).parent.name}


def test_only_enabled_plugins_are_listed_in_the_order_of_their_calls(site: Path, tmp_path: Path) -> None:
    shop = shop_with(tmp_path, "tools", **{"sinks.copy": 'type = "echo"'})
    # The last two plugins are listed because the configuration uses their store and sink types.
    assert [*listed(shop)] == ["tools", "keys", "session", "sqlite", "jsonl"]


def test_the_table_for_people_has_the_same_content(site: Path, tmp_path: Path) -> None:
    shop = shop_with(tmp_path, "tools")
    heads, *rows = columns(shop)
    assert heads == ["NAME", "DISTRIBUTION", "SINKS", "STORES", "HOOKS", "FILE"]
    assert rows == [
        [
            plugin["name"],
            f"{plugin['distribution']} {plugin['version']}",
            ", ".join(plugin["sinks"]) or "-",
            ", ".join(plugin["stores"]) or "-",
            ", ".join(plugin["hooks"]),
            plugin["file"],
        ]
        for plugin in listed(shop).values()
    ]
    lines = shop.command("plugins", "list").splitlines()
    assert len({line.index(row[-1]) for line, row in zip(lines, [heads, *rows], strict=True)}) == 1


def test_the_command_needs_no_store_and_creates_none(tmp_path: Path) -> None:
    config = tmp_path / "ingestd.toml"
    config.write_text('[store]\nurl = "sqlite:ingestd.db"\n')
    done = run_ingestd("plugins", "list", config=config)
    assert (done.returncode, done.stderr) == (0, "")
    assert [file.name for file in tmp_path.iterdir()] == ["ingestd.toml"]


def test_the_command_ends_quietly_when_its_reader_has_ended(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" plugins list --config "$1" | head -c 4', INGESTD, str(shop.config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "NAME", "")
