"""The configuration: where it is found, and that what is wrong in it is told with place and cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import field

from ingestd.config import Config, find_config, load_config
from ingestd.errors import ConfigError
from ingestd.options import Address, Duration, Options, Size, read_options


class Inner(Options):
    id: str
    level: int = 1


class Everything(Options):
    text: str = "x"
    flag: bool = False
    count: int = 0
    ratio: float = 0.5
    file: Path = Path("x")
    other_file: Path | None = None
    age: Duration = Duration.parse("1s")
    room: Size = Size.parse("1B")
    listen: Address = Address("localhost", 1)
    start: Literal["now", "beginning"] = "now"
    names: tuple[str, ...] = ()
    limit: int | None = None
    table: dict[str, tuple[str, ...]] = field(default_factory=dict)
    one: Inner = field(default_factory=lambda: Inner(id="one"))
    many: tuple[Inner, ...] = ()


def read(**table: Any) -> Everything:
    return read_options(Everything, table, path="plugins.all", source="x.toml", base=Path("/base"))


def load(folder: Path, text: str) -> Config:
    file = folder / "ingestd.toml"
    file.write_text(text)
    return load_config(file)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and nothing in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INGESTD_CONFIG", raising=False)
    return tmp_path


def test_the_option_goes_before_the_environment_and_that_before_the_working_folder(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "ingestd.toml").touch()
    assert find_config(None) == Path("ingestd.toml")
    monkeypatch.setenv("INGESTD_CONFIG", "/some/where.toml")
    assert find_config(None) == Path("/some/where.toml")
    assert find_config("named.toml") == Path("named.toml")


@pytest.mark.skipif(Path("/etc/ingestd/ingestd.toml").exists(), reason="this machine has a configuration of its own")
def test_without_any_it_says_where_it_looked(nowhere: Path) -> None:
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
        ("[zzz]", r"zzz: unknown option; known: http, ops, store, journal, schemas, plugins, sinks"),
        ("http = 1", r"http: expected a section \[http\]"),
        ("sinks = 1", r"sinks: expected a section \[sinks\]"),
        ("[[http]]", r"http: expected a section \[http\]"),
        ("[sinks]\na = 1", r"sinks\.a: expected a section \[sinks\.a\]"),
        ('[sinks."a b"]', r"sinks\.a b: a sink's name is 1 to 64 letters, digits, - and _"),
        (f"[sinks.{'a' * 65}]", r"a sink's name is 1 to 64"),
        ("[http]\nlistn = 1", r"http\.listn: unknown option; did you mean http\.listen\?"),
        ("[plugins]\nsession = 1", r"plugins\.session: unknown option"),
        ("[plugins]\nenabled = 'keys'", r"plugins\.enabled: expected `array \| null`, got 'keys'"),
        ("[store]\nurl = 1", r"store\.url: expected `str`, got 1"),
    ],
)
def test_a_wrong_file_is_told_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(ConfigError, match=r"latin\.toml: cannot be read"):
        load_config(tmp_path / "latin.toml")


def test_every_type_of_option_is_read() -> None:
    options = read(
        text="t", flag=True, count=2**70, ratio=1, file="a/b", other_file="/c", age="90s", room="2kB",
        listen="[::1]:0", start="beginning", names=["a", "b"], limit=3, table={"CRM": ["ADMIN"]},
        one={"id": "i", "level": 2}, many=[{"id": "m"}, {"id": "n", "level": 3}],
    )  # fmt: skip
    assert options == Everything(
        text="t", flag=True, count=2**70, ratio=1.0, file=Path("/base/a/b"), other_file=Path("/c"), age=Duration(90),
        room=Size(2000), listen=Address("::1", 0), start="beginning", names=("a", "b"), limit=3,
        table={"CRM": ("ADMIN",)}, one=Inner(id="i", level=2), many=(Inner(id="m"), Inner(id="n", level=3)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"text": 1}, "text: expected `str`, got 1"),
        ({"flag": "yes"}, "flag: expected `bool`, got 'yes'"),
        ({"flag": 1}, "flag: expected `bool`, got 1"),
        ({"count": "1"}, "count: expected `int`, got '1'"),
        ({"count": 1.5}, "count: expected `int`, got 1.5"),
        ({"count": True}, "count: expected `int`, got True"),
        ({"ratio": "1"}, "ratio: expected `float`, got '1'"),
        ({"file": 1}, "file: expected path, got 1"),
        ({"other_file": 1}, "other_file: expected path, got 1"),
        ({"age": 5}, 'age: expected a number with a unit (ms, s, m, h, d), such as "30m", got 5'),
        ({"room": "1kb"}, 'room: expected a number with a unit (B, kB, MB, GB, KiB, MiB, GiB), such as "1MiB", got'),
        ({"listen": 80}, 'listen: expected an address and a port, such as "127.0.0.1:8080" or "[::1]:8080", got 80'),
        ({"start": "never"}, "start: expected one of 'now', 'beginning', got 'never'"),
        ({"names": "a"}, "names: expected `array`, got 'a'"),
        ({"names": ["a", 1]}, "names[1]: expected `str`, got ['a', 1]"),
        ({"limit": "3"}, "limit: expected `int | null`, got '3'"),
        ({"one": 1}, "one: expected `object`, got 1"),
        ({"one": {}}, "one.id: must be given"),
        ({"one": {"id": "i", "level": "high"}}, "one.level: expected `int`, got 'high'"),
        ({"one": {"id": "i", "levle": 1}}, "one.levle: unknown option; did you mean plugins.all.one.level?"),
        ({"many": {"id": "i"}}, "many: expected `array`, got {'id': 'i'}"),
        ({"many": [{"id": "i"}, {}]}, "many[1].id: must be given"),
        ({"many": [{"id": "i", "levle": 1}]}, "many[0].levle: unknown option; did you mean plugins.all.many[0].level?"),
        ({"contrary": 1}, "contrary: unknown option; did you mean plugins.all.count?"),
        ({"zzzzzzzzzzzzzzzzzz": 1}, "zzzzzzzzzzzzzzzzzz: unknown option; known: plugins.all.text, plugins.all.flag"),
    ],
)
def test_a_wrong_value_is_told_with_option_and_expectation(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(**table)
    assert str(error.value).startswith(f"x.toml: plugins.all.{message}")


def test_a_wrong_entry_of_a_list_does_not_tell_its_neighbours() -> None:
    with pytest.raises(ConfigError) as error:
        read(many=[{"id": "not for the log", "level": "high"}])
    assert "not for the log" not in str(error.value)


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "localhost:1", "0.0.0.0:65535", "[::1]:8080", "[::]:0"])
def test_addresses(text: str) -> None:
    host, _, port = text.rpartition(":")
    assert Address.parse(text) == Address(host.strip("[]"), int(port))


@pytest.mark.parametrize(
    "text",
    ["", "8080", ":8080", "localhost", "localhost:", "localhost:65536", "localhost:-1", "localhost:http", "::1:80",
     "[::1]", "[::1]80", "[]:80", "[localhost]:80", "a:b:80", "localhost:080808", " localhost : 80", None, 80],
)  # fmt: skip
def test_what_is_no_address(text: object) -> None:
    with pytest.raises(ValueError, match="expected an address and a port"):
        Address.parse(text)


UNITS: dict[type[Duration | Size], dict[str, float]] = {
    Duration: {"ms": 0.001, "s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60},
    Size: {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3},
}
UNIT = st.sampled_from([(type_, unit, factor) for type_, units in UNITS.items() for unit, factor in units.items()])


@given(st.integers(0, 10**9), UNIT, st.sampled_from(["", " "]))
def test_a_number_with_a_unit_is_that_many_seconds_or_bytes(
    number: int, unit: tuple[type[Duration | Size], str, float], space: str
) -> None:
    type_, name, factor = unit
    parsed = type_.parse(f"{number}{space}{name}")
    assert isinstance(parsed, type_)
    assert parsed == pytest.approx(number * factor)


@given(st.integers(0, 10**12))
def test_a_duration_in_milliseconds_is_exact(number: int) -> None:
    assert Duration.parse(f"{number}ms").milliseconds == number
    assert Duration.parse(f"{number / 1000:.3f}s").milliseconds == number


@given(UNIT, st.text())
def test_any_other_text_is_refused(unit: tuple[type[Duration | Size], str, float], text: str) -> None:
    type_, name, _ = unit
    for wrong in (name, f"{name}1", f"-1{name}", f"+1{name}", f"1{name}1", f"1e3{name}", f"1_0{name}", f".5{name}"):
        with pytest.raises(ValueError, match="expected a number with a unit"):
            type_.parse(wrong)
    if not text[:1].isdecimal():
        with pytest.raises(ValueError, match="expected a number with a unit"):
            type_.parse(text)


@pytest.mark.parametrize("text", ["1", "1.", "1S", "1 M", "1mb", "1kb", "1 sec", "1s ", "1  s", "1h30m", 1, 1.5, None])
@pytest.mark.parametrize("type_", [Duration, Size])
def test_a_unit_is_never_guessed(type_: type[Duration | Size], text: object) -> None:
    with pytest.raises(ValueError, match="such as"):
        type_.parse(text)
