"""`ingestd config show` prints the configuration in force in a readable form, with secrets hidden."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.options import Address, Duration, HostName, NamedOptions, Network, Options, Origin, Size, Url
from ingestd.config import SECTIONS, Config, StoreUrl, load_config, parse_config
from ingestd.delivery import read_sink_options
from ingestd.hooks.loader import Plugins, load_plugins
from ingestd.plugins.reports.periods import TimeZone
from ingestd.plugins.token_buckets import Rate
from ingestd.plugins.tools.config import as_facts, as_toml, to_toml

BASE = Path("/base")


def parse(tables: dict[str, Any]) -> tuple[Config, Plugins]:
    config = parse_config(tables, source="x.toml", base=BASE)
    return config, load_plugins(config)


@cache
def built_in() -> dict[str, type[Options]]:
    return {plugin.name: type(plugin.options) for plugin in parse({})[1].loaded if plugin.options is not None}


# Configurations, as the tables of a file

TEXT = st.text(st.characters(exclude_categories=["Cs"], include_characters='"\\\x7f\n'))
WORDS = st.text("abc./\"' é", min_size=1)
NAMES = WORDS.filter(str.strip)
NUMBERS = st.integers(1, 9000)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    int: st.integers(2, 2**70),  # some options must be at least 2
    float: st.floats(0, 1),
    Path: WORDS,
    Duration: st.builds("{}{}".format, NUMBERS, st.sampled_from([*Duration.units])),
    Size: st.builds("{}{}".format, NUMBERS, st.sampled_from([*Size.units])),
    Address: st.builds("{}:{}".format, st.sampled_from(["127.0.0.1", "[::1]", "h"]), st.integers(0, 65535)),
    Rate: st.builds("{}/{}".format, NUMBERS, st.sampled_from("smhd")),
    Origin: st.sampled_from(["*", "null", "https://shop.example", "http://[::1]:3000", "https://Bücher.example:443/"]),
    HostName: st.sampled_from(["*", "*.example", "Ingestd.example", "::1", "bücher.example"]),
    Network: st.sampled_from(["::1", "10.0.0.0/8", "fd00::/8"]),
    Url: st.builds("sqlite:{}".format, st.text("abc./-é", min_size=1)),
}
VALUES[StoreUrl] = VALUES[Url]
VALUES[TimeZone] = st.sampled_from(["UTC", "Europe/Berlin"])
CHANNELS = st.fixed_dictionaries({"name": NAMES, "source": st.sampled_from(["acme", ["a", "b|c"], "(x|y).*"])})
KEYS = st.fixed_dictionaries({
    "id": st.text("ab-_", min_size=16, max_size=20),
    "kind": st.just("public"),
    "tenant": st.just("shop"),
    "label": TEXT,
})  # fmt: skip
SPECIAL = {
    # A burst needs its rate, but options are drawn independently.
    "plugins.rate_limit.per_key_burst": st.nothing(),
    "plugins.rate_limit.per_address_burst": st.nothing(),
    "plugins.bots.allow": st.lists(WORDS, max_size=3),
    "plugins.bots.deny": st.lists(WORDS, max_size=3),
    "plugins.scrub.drop": st.lists(st.builds("/data/{}".format, st.text('ab*/-"é', max_size=5)), max_size=3),
    "plugins.scrub.hash": st.nothing(),  # needs a secret
    "plugins.scrub.secret": st.nothing(),  # printed as ***
    "plugins.redis.prefix": st.text("ab:*é", min_size=1, max_size=64),
    "plugins.redis.patience": st.builds("{}s".format, st.integers(1, 300)),
    "plugins.redis.partitions": st.integers(1, 1024),
    "plugins.redis.sentinels": st.lists(VALUES[Address], max_size=2),
    "plugins.redis.sentinel_password": st.nothing(),  # printed as ***
    "schemas.directory": st.just("/"),  # the directory must exist
    "plugins.segment.names": st.dictionaries(TEXT, st.sampled_from(["Page View", "Order Completed"]), max_size=3),
    "plugins.attribution.click_ids": st.dictionaries(NAMES, st.sampled_from(["net / cpc", "net"]), max_size=3),
    "plugins.attribution.channels": st.lists(CHANNELS, max_size=2),
    "plugins.keys.declared": st.lists(KEYS, max_size=3, unique_by=lambda key: key["id"]),
}


def values(path: str, wanted: Any) -> st.SearchStrategy[Any]:
    """Values of an option of this type in a file."""
    if path in SPECIAL:
        return SPECIAL[path]
    if get_origin(wanted) is Literal:
        return st.sampled_from(get_args(wanted))
    if get_origin(wanted) is tuple:
        return st.lists(values(path, get_args(wanted)[0]), max_size=3)
    if wanted in VALUES:
        return VALUES[wanted]
    if isinstance(wanted, type) and issubclass(wanted, Options):
        return options(path, wanted)
    return values(path, get_args(wanted)[0])  # `X | None`: values of X


def options(path: str, type_: type[Options]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the options of a section."""
    if issubclass(type_, NamedOptions):
        return st.just({})  # each table needs a secret, which the output hides
    known = {
        name: values(f"{path}.{name}", wanted)
        for name, wanted in get_type_hints(type_).items()
        if get_origin(wanted) is not ClassVar
    }
    return st.fixed_dictionaries({}, optional=known)


def configurations() -> st.SearchStrategy[dict[str, Any]]:
    sections: dict[str, Any] = {name: options(name, type_) for name, type_ in SECTIONS.items() if name != "plugins"}
    plugins: dict[str, Any] = {name: options(f"plugins.{name}", type_) for name, type_ in built_in().items()}
    names = sorted(plugin.name for plugin in parse({})[1].loaded)
    sink = {"type": st.just("jsonl"), "path": WORDS}
    more = {"max_size": VALUES[Size], "keep": NUMBERS, "start": st.sampled_from(["now", "beginning"])}
    return st.fixed_dictionaries({
        **sections,
        "plugins": st.fixed_dictionaries({}, optional={**plugins, "enabled": st.permutations(names)}),
        "sinks": st.dictionaries(
            st.text("aB1-_", min_size=1, max_size=9), st.fixed_dictionaries(sink, optional=more), max_size=3
        ),
    })  # fmt: skip


def in_force(config: Config, plugins: Plugins) -> dict[str, Any]:
    """Every option with the value that the daemon gets."""
    return {
        **{name: getattr(config, name) for name in SECTIONS},
        **{f"plugins.{plugin.name}": plugin.options for plugin in plugins.loaded},
        **{
            f"sinks.{name}": read_sink_options(name, table, plugins.sinks["jsonl"], config)
            for name, table in config.sink_tables.items()
        },
    }


@given(st.deferred(configurations))
def test_the_output_is_the_same_configuration(tables: dict[str, Any]) -> None:
    config, plugins = parse(tables)
    text = as_toml(config, plugins)
    again = parse(tomllib.loads(text))
    assert in_force(*again) == in_force(config, plugins)
    # The output has every option. Printing the same configuration again gives the same output.
    assert tomllib.loads(as_toml(*again)) == tomllib.loads(text)
    shown: dict[str, Any] = json.loads(json.dumps(as_facts(config, plugins)))
    assert {"sinks": {}, **without_none(shown)} == {"sinks": {}, **tomllib.loads(text)}


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_none(each) for name, each in value.items() if each is not None}
    return [without_none(each) for each in value] if isinstance(value, list) else value


PLAIN = TEXT | st.booleans() | st.integers() | st.floats(allow_nan=False)


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20))
def test_any_value_is_written_as_toml(value: Any) -> None:
    assert tomllib.loads(f"value = {to_toml(value)}  # comment") == {"value": value}


def test_every_option_is_shown_with_its_value_and_its_source(tmp_path: Path) -> None:
    file = tmp_path / "ingestd.toml"
    file.write_text(
        '[http]\nmax_body = "1MiB"\n[plugins.session]\nidle = "90m"\n[sinks.a]\ntype = "jsonl"\npath = "p"\n'
    )
    config = load_config(file, ["http.max_waiting=7", "sinks.a.max_size=1024kB"])
    lines = as_toml(config, load_plugins(config)).splitlines()
    for line in (
        "[http]",
        'max_body = "1MiB"  # file',
        "max_waiting = 7  # --set",
        'idle_timeout = "75s"',
        "trusted_proxies = []",
        "[journal]",
        "# max_size =",
        "access_sample = 0.0",
        "[plugins.session]",
        'idle = "90m"  # file',
        "[sinks.a]",
        'start = "now"',
        'max_size = "1000KiB"  # --set',
        f'path = "{tmp_path}/p"  # file',
    ):
        assert line in lines


def test_secrets_are_hidden_and_their_references_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_text("hunter2")
    monkeypatch.setenv("JOURNAL", "sqlite://user:hunter2@/journal.db")
    key = {"kind": "server", "tenant": "shop", "id": "6f9619ff-8b86-d011-b42d-00cf4fc964ff"}
    tables = {
        "store": {"url": "sqlite://user:hunter2@host/x.db"},
        "journal": {"url": {"env": "JOURNAL"}},
        "plugins": {"keys": {"declared": [{**key, "secret": {"file": "kept"}, "previous_secret": "hunter2-1"}]}},
    }
    config = parse_config(tables, source="x.toml", base=tmp_path)
    plugins = load_plugins(config)
    for text in (as_toml(config, plugins), str(as_facts(config, plugins)), repr(config), repr(plugins.loaded)):
        assert "hunter2" not in text
    shown = tomllib.loads(as_toml(config, plugins))
    assert shown["store"]["url"] == "sqlite://user:***@host/x.db"
    assert shown["journal"]["url"] == {"env": "JOURNAL"}
    (declared,) = shown["plugins"]["keys"]["declared"]
    assert declared["secret"] == {"file": str(tmp_path / "kept")}
    assert declared["previous_secret"] == "***"
