"""The configuration: its location, and errors that name the option and the cure."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError
from ingestd.api.options import Duration, Options, Size, read_options
from ingestd.api.sink import Sink
from ingestd.config import SECTIONS, Config, find_config, load_config
from ingestd.config.overrides import apply_overrides
from ingestd.delivery import SinkOptions, read_sink_options
from ingestd.plugins.sinks.nats import NatsSink
from ingestd.plugins.tools.config import to_toml


def load(folder: Path, text: str, *arguments: str) -> Config:
    """The configuration of a file with this text, overridden by these arguments of `--set`."""
    file = folder / "ingestd.toml"
    file.write_text(text)
    return load_config(file, arguments)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and nothing in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INGESTD_CONFIG", raising=False)
    return tmp_path


def test_the_option_precedes_the_environment_which_precedes_the_working_folder(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "ingestd.toml").touch()
    assert find_config(None) == Path("ingestd.toml")
    monkeypatch.setenv("INGESTD_CONFIG", "/some/where.toml")
    assert find_config(None) == Path("/some/where.toml")
    assert find_config("named.toml") == Path("named.toml")


@pytest.mark.skipif(Path("/etc/ingestd/ingestd.toml").exists(), reason="this machine has a configuration of its own")
def test_a_missing_configuration_names_the_searched_paths(nowhere: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither ingestd\.toml nor /etc/ingestd/ingestd\.toml.*--config or INGESTD"):
        find_config(None)


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert config.http.listen == ("127.0.0.1", 8080)
    assert config.http.max_body == Size(1 << 20)
    assert config.ops.listen == ("127.0.0.1", 9464)
    assert config.store.url == "sqlite:///var/lib/ingestd/ingestd.db"
    assert config.journal.url is None
    assert config.plugins.enabled is None
    assert config.plugin_tables == {}
    assert config.sink_tables == {}


def test_sections_options_and_the_tables_of_plugins_and_sinks(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    config = load(
        tmp_path,
        """
        [http]
        listen = "[::]:80"
        allowed_origins = ["https://shop.example"]
        [schemas]
        directory = "more"
        [plugins]
        enabled = ["keys", "session"]
        [plugins.session]
        idle = "1h"
        [sinks.a-1_B]
        type = "jsonl"
        """,
    )
    assert config.http.listen == ("::", 80)
    assert config.http.allowed_origins == ("https://shop.example",)
    assert config.schemas.directory == tmp_path.resolve() / "more"
    assert config.plugins.enabled == ("keys", "session")
    assert config.plugin_tables == {"session": {"idle": "1h"}}
    assert config.sink_tables == {"a-1_B": {"type": "jsonl"}}
    assert config.source == str(tmp_path / "ingestd.toml")


def test_paths_are_relative_to_the_file_also_through_a_relative_name(nowhere: Path) -> None:
    (nowhere / "conf").mkdir()
    (nowhere / "more").mkdir()
    (nowhere / "conf" / "ingestd.toml").write_text('[schemas]\ndirectory = "../more"')
    config = load_config(Path("conf/ingestd.toml"))
    assert config.base == nowhere.resolve() / "conf"
    assert config.schemas.directory == nowhere.resolve() / "conf" / "../more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[http]\nlisten\n", r"ingestd\.toml: not TOML: .*line 2"),
        ("[htp]", r"ingestd\.toml: htp: unknown option; did you mean http\?"),
        ("[sink.a]", r"sink: unknown option; did you mean sinks\?"),
        ("[zzz]", r"zzz: unknown option; known: http, ops, store, journal, ids, logs, schemas, plugins, sinks"),
        ("http = 1", r"http: expected a section \[http\]"),
        ("sinks = 1", r"sinks: expected a section \[sinks\]"),
        ("[[http]]", r"http: expected a section \[http\]"),
        ("[sinks]\na = 1", r"sinks\.a: expected a section \[sinks\.a\]"),
        ('[sinks."a b"]', r"sinks\.a b: a sink's name is 1 to 64 letters, digits, - and _"),
        (f"[sinks.{'a' * 65}]", r"a sink's name is 1 to 64"),
        ("[http]\nlistn = 1", r"http\.listn: unknown option; did you mean http\.listen\?"),
        ("[plugins]\nsession = 1", r"plugins\.session: unknown option"),
        ("[plugins]\nenabled = 'keys'", r"plugins\.enabled: expected an array in brackets, got 'keys'"),
        ("[store]\nurl = 'data'", r'store\.url: expected a URL with its scheme, such as "sqlite:ingestd.db"'),
        ("[store]\nurl = 1", r"store\.url: expected a URL, as text, \{ file"),
        (
            "[schemas]\ndirectory = 'gone'",
            r"ingestd\.toml: schemas\.directory: /\S+/gone: the directory of schemas does not",
        ),
        ("[http]\nmax_waiting = " + "1" * 5000, r"ingestd\.toml: not TOML: Exceeds the limit"),
        ("[http]\nmax_waiting = " + "[" * 5000, r"ingestd\.toml: not TOML: nested too deeply"),
    ],
)
def test_the_error_of_a_wrong_file_names_the_location(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file or directory\Z"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match=r"latin\.toml: cannot be read"):
        load_config(tmp_path / "latin.toml")


# Options set on the command line


def test_set_overrides_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, '[http]\nmax_body = "3MiB"\nmax_waiting = 7', "http.max_body=2MiB", "ops.listen=[::1]:1")
    assert config.http.max_body == Size.parse("2MiB")
    assert config.http.max_waiting == 7
    assert config.ops.listen == ("::1", 1)
    assert config.origin("http", "max_body") == config.origin("ops", "listen") == "--set"
    assert config.origin("http", "max_waiting") == "file"
    assert config.origin("http", "listen") == config.origin("logs", "level") == "default"


@pytest.mark.parametrize(
    ("argument", "tables"),
    [
        ('a="2MiB"', {"a": "2MiB"}),
        ("a=2MiB", {"a": "2MiB"}),
        ("a=sqlite:x.db", {"a": "sqlite:x.db"}),
        ("a=redis://:p=w#@h", {"a": "redis://:p=w#@h"}),
        ("a=", {"a": ""}),
        ("a= b ", {"a": " b "}),
        ("a=7", {"a": 7}),
        ("a=0.5", {"a": 0.5}),
        ("a=true", {"a": True}),
        ("a=True", {"a": "True"}),
        ('a=["x", "y"]', {"a": ["x", "y"]}),
        ("a=[x]", {"a": "[x]"}),
        ('a={ file = "x" }', {"a": {"file": "x"}}),
        ("a=1\nb=2", {"a": "1\nb=2"}),
        ("a=" + "[" * 9999, {"a": "[" * 9999}),
        ("a=" + "1" * 9999, {"a": "1" * 9999}),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}),
        (" a . b =1", {"a": {"b": 1}}),
        ("a.\"b.c=d\".'e.f'=1", {"a": {"b.c=d": {"e.f": 1}}}),
        ('"\\u00e9\\""=1', {'é"': 1}),
    ],
)
def test_a_value_is_toml_or_else_text(argument: str, tables: dict[str, Any]) -> None:
    read: dict[str, Any] = {}
    apply_overrides(read, [argument])
    assert read == tables


@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_any_name_and_text_can_be_quoted(section: str, name: str, text: str) -> None:
    tables: dict[str, Any] = {}
    apply_overrides(tables, [f"{to_toml(section)}.{to_toml(name)}={to_toml(text)}"])
    assert tables == {section: {name: text}}


def test_the_last_of_several_counts() -> None:
    tables: dict[str, Any] = {"a": {"b": 1, "c": 2}}
    apply_overrides(tables, ["a.b=3", "a.b=4", "d.e=5", "f={ g = 1 }", "f.h=2", "i.j=1", "i=6"])
    assert tables == {"a": {"b": 4, "c": 2}, "d": {"e": 5}, "f": {"g": 1, "h": 2}, "i": 6}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("http.max_bdy=2MiB", "--set http.max_bdy: unknown option; did you mean http.max_body?"),
        ("htp.max_body=2MiB", "--set htp.max_body: htp: unknown option; did you mean http?"),
        ("http.max_body=2MB!", "--set http.max_body: expected a number with a unit"),
        ("http.max_waiting=many", "--set http.max_waiting: expected a whole number, got 'many'"),
        ("http.max_waiting=0", "--set http.max_waiting: expected a whole number >= 1, got 0"),
        ("http=1", "--set http: expected a section [http]"),
        ("http={ listn = 1 }", "--set http: http.listn: unknown option; did you mean http.listen?"),
        ("sinks.a=1", "--set sinks.a: expected a section [sinks.a]"),
        ('sinks."a b".type=jsonl', "--set sinks.a b.type: sinks.a b: a sink's name is"),
        ("schemas.directory=gone", "--set schemas.directory: /"),
        ("http.listen.port=1", "--set http.listen.port: http.listen is a value, not a section"),
        ("store.url=hunter2", "--set store.url: expected a URL"),
        ("http.max_body", "--set http.max_body: expected OPTION=VALUE, such as http.max_body=2MiB"),
        ("=hunter2", "--set : expected OPTION=VALUE"),
        ("http..max_body=hunter2", "--set http..max_body: expected OPTION=VALUE"),
        ("http.max body=hunter2", "--set http.max body: expected OPTION=VALUE"),
        ('"\\q"=hunter2', '--set "\\q": expected OPTION=VALUE'),
        ("http.max_body=\udce9", "--set: an argument is not UTF-8"),
    ],
)
def test_a_wrong_set_names_the_argument_the_option_and_the_cure(tmp_path: Path, argument: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, '[http]\nlisten = "127.0.0.1:0"', argument)
    assert str(error.value).startswith(message)
    assert "hunter2" not in str(error.value)


def test_a_fault_of_the_file_names_the_file_even_with_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ingestd\.toml: http\.max_waiting: "):
        load(tmp_path, "[http]\nmax_waiting = 0", "http.max_header_size=1MiB", "http.max_wait=1")


def test_faults_of_set_in_plugins_and_sinks_name_the_argument(tmp_path: Path) -> None:
    config = load(tmp_path, '[sinks.a]\ntype = "jsonl"', "sinks.a.path=x", "sinks.b.type=jsonl", "plugins.p.q=1")
    assert config.sink_tables == {"a": {"type": "jsonl", "path": "x"}, "b": {"type": "jsonl"}}
    assert config.place("sinks.a.type") == f"{tmp_path / 'ingestd.toml'}: sinks.a.type"
    assert config.place("sinks.a.path") == "--set sinks.a.path"
    assert config.place("sinks.b.path") == "--set sinks.b.type: sinks.b.path"
    assert config.place("plugins.p.q[0].r") == "--set plugins.p.q: plugins.p.q[0].r"
    assert config.place("plugins.p.qq") == "--set plugins.p.q: plugins.p.qq"


def test_paths_that_are_set_are_relative_to_the_file(nowhere: Path) -> None:
    (nowhere / "conf" / "more").mkdir(parents=True)
    (nowhere / "conf" / "url").write_text("sqlite:x.db")
    (nowhere / "conf" / "ingestd.toml").touch()
    config = load_config(Path("conf/ingestd.toml"), ["schemas.directory=more", "store.url.file=url"])
    assert config.schemas.directory == nowhere.resolve() / "conf" / "more"
    assert config.store.url == "sqlite:x.db"


# Impossible numbers

ZERO_MEANS_SOMETHING = {
    "http.shutdown_timeout",
    "logs.access_sample",
    "plugins.attribution.late",
    "plugins.redis.promotion_grace",
    "plugins.redis.wait_replicas",
}


def sections() -> dict[str, type[Options]]:
    """The options of every section and of every built-in plugin and sink."""
    found: dict[str, type[Options]] = {**SECTIONS, "sinks.a": SinkOptions}
    for point in entry_points(group="ingestd"):
        offered = point.load()
        if point.dist is not None and point.dist.name == "ingestd":
            options = getattr(offered, "Options", None)
            if options is not None:
                found[f"plugins.{point.name}"] = options
            for sink in vars(offered).values():
                if isinstance(sink, type) and issubclass(sink, Sink) and sink is not Sink:
                    found[f"sinks.{point.name}"] = sink.Options
    return found


def numbers() -> list[tuple[str, type[Options], str, Any]]:
    """Every built-in option that is a number, with its zero."""
    zeros: dict[type, Any] = {int: 0, float: 0.0, Duration: "0s", Size: "0B"}
    return [
        (path, options, name, zeros[type_])
        for path, options in sections().items()
        for name, wanted in get_type_hints(options).items()
        for type_ in {wanted, *get_args(wanted)} & zeros.keys()
    ]


@pytest.mark.parametrize(
    ("path", "options", "name", "zero"), numbers(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_impossible_number_stops_the_start(path: str, options: type[Options], name: str, zero: Any) -> None:
    types = get_type_hints(options)

    def read(value: Any) -> Options:
        names = [field.name for field in msgspec.structs.fields(options) if field.required]
        required = {each: ["x:x"] if get_origin(types[each]) is tuple else "x:x" for each in names}
        return read_options(options, {**required, name: value}, path=path, source="x.toml", base=Path("/"))

    below = f"-{zero}" if isinstance(zero, str) else -1
    for impossible in [below] if f"{path}.{name}" in ZERO_MEANS_SOMETHING else [below, zero]:
        with pytest.raises(ConfigError, match=rf"^x\.toml: {path}\.{name}: expected"):
            read(impossible)
    if f"{path}.{name}" in ZERO_MEANS_SOMETHING:
        assert not getattr(read(zero), name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[logs]\naccess_sample = 1.5", r"logs\.access_sample: expected a number <= 1"),
        ("[logs]\naccess_sample = nan", r"logs\.access_sample: expected a number >= 0"),
        (
            '[http]\ntrusted_proxies = ["::1", "proxy"]',
            r"http\.trusted_proxies\[1\]: expected an IP address or a network",
        ),
        ('[http]\nidle_timeout = "99999999d"', r"http\.idle_timeout: expected at most 36500d"),
        ('[http]\nlisten = "127.0.0.1:70000"', r"http\.listen: expected an address and a port"),
    ],
)
def test_other_impossible_values_stop_the_start(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


# Former options


@pytest.mark.parametrize(
    ("path", "options", "name"),
    [(path, options, name) for path, options in sections().items() for name in options.former],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_former_option_is_refused_with_what_holds_now(path: str, options: type[Options], name: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_options(options, {name: "1"}, path=path, source="x.toml", base=Path("/"))
    assert str(error.value) == f"x.toml: {path}.{name}: unknown option; {options.former[name]}"
    assert name not in {field.name for field in msgspec.structs.fields(options)}
    changelog = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    assert re.search(rf"`([^`\n]* )?{name}`", changelog)


def test_a_former_option_of_a_sink_is_named_beside_the_options_of_all_sinks(tmp_path: Path) -> None:
    config = load(tmp_path, '[sinks.bus]\ntype = "nats"\nstream = "X"\nurl = "nats://h"\nduplicate_window = "1h"')
    with pytest.raises(ConfigError, match=r"sinks\.bus\.duplicate_window: unknown option; a new stream remembers ids"):
        read_sink_options("bus", config.sink_tables["bus"], NatsSink, config)
