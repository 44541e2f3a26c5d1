"""Options: every type is read, and errors name the option and the expected form, but never a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, field

from ingestd.api.errors import ConfigError
from ingestd.api.options import (
    Address,
    Duration,
    Network,
    Options,
    PositiveDuration,
    PositiveSize,
    Secret,
    Size,
    Url,
    read_options,
)


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
    network: Network = Network("::1")
    at_least_one: Annotated[int, Meta(ge=1)] = 1
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    pause: PositiveDuration | None = None
    most: PositiveSize = Size.parse("1B")
    secret: Secret | None = None
    secrets: tuple[Secret, ...] = ()
    url: Url = Url("sqlite:x.db")


class Keeper(Options):
    key: Secret


class Careful(Options):
    secret: Secret | None = None
    secrets: tuple[Secret, ...] = ()
    url: Url | None = None
    inner_secrets: tuple[Keeper, ...] = ()


def read(**table: Any) -> Everything:
    return read_options(Everything, table, path="plugins.all", source="x.toml", base=Path("/base"))


def test_every_type_of_option_is_read() -> None:
    options = read(
        text="t", flag=True, count=2**70, ratio=1, file="a/b", other_file="/c", age="90s", room="2kB",
        listen="[::1]:0", start="beginning", names=["a", "b"], limit=3, table={"CRM": ["ADMIN"]},
        one={"id": "i", "level": 2}, many=[{"id": "m"}, {"id": "n", "level": 3}], network="10.0.0.0/8", at_least_one=1,
        share=1, pause="1ms", most="1GiB", secret="s", secrets=["a", "b"], url="redis://h:1",
    )  # fmt: skip
    assert options == Everything(
        text="t", flag=True, count=2**70, ratio=1.0, file=Path("/base/a/b"), other_file=Path("/c"), age=Duration(90),
        room=Size(2000), listen=Address("::1", 0), start="beginning", names=("a", "b"), limit=3,
        table={"CRM": ("ADMIN",)}, one=Inner(id="i", level=2), many=(Inner(id="m"), Inner(id="n", level=3)),
        network=Network("10.0.0.0/8"), at_least_one=1, share=1.0, pause=Duration(0.001), most=Size(2**30),
        secret=Secret("s"), secrets=(Secret("a"), Secret("b")), url=Url("redis://h:1"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"text": 1}, "text: expected text, got 1"),
        ({"flag": "yes"}, "flag: expected true or false, got 'yes'"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"count": "1"}, "count: expected a whole number, got '1'"),
        ({"count": 1.5}, "count: expected a whole number, got 1.5"),
        ({"count": True}, "count: expected a whole number, got True"),
        ({"ratio": "1"}, "ratio: expected a number, got '1'"),
        ({"file": 1}, "file: expected path, got 1"),
        ({"other_file": 1}, "other_file: expected path, got 1"),
        ({"age": 5}, 'age: expected a number with a unit (ms, s, m, h, d), such as "30m", got 5'),
        ({"room": "1kb"}, 'room: expected a number with a unit (B, kB, KiB, MB, MiB, GB, GiB), such as "1MiB", got'),
        ({"listen": 80}, 'listen: expected an address and a port, such as "127.0.0.1:8080" or "[::1]:8080", got 80'),
        ({"start": "never"}, "start: expected one of 'now', 'beginning', got 'never'"),
        ({"names": "a"}, "names: expected an array in brackets, got 'a'"),
        ({"names": ["a", 1]}, "names[1]: expected text, got ['a', 1]"),
        ({"limit": "3"}, "limit: expected a whole number, got '3'"),
        ({"one": 1}, "one: expected a table, got 1"),
        ({"one": {}}, "one.id: must be given"),
        ({"one": {"id": "i", "level": "high"}}, "one.level: expected a whole number, got 'high'"),
        ({"one": {"id": "i", "levle": 1}}, "one.levle: unknown option; did you mean plugins.all.one.level?"),
        ({"many": {"id": "i"}}, "many: expected an array in brackets, got {'id': 'i'}"),
        ({"many": [{"id": "i"}, {}]}, "many[1].id: must be given"),
        ({"many": [{"id": "i", "levle": 1}]}, "many[0].levle: unknown option; did you mean plugins.all.many[0].level?"),
        (
            {"network": 1},
            'network: expected an IP address or a network without host bits, such as "10.0.0.0/8", got',
        ),
        ({"network": "10.0.0.1/8"}, "network: expected an IP address or a network"),
        ({"network": "proxy.example"}, "network: expected an IP address or a network"),
        ({"at_least_one": 0}, "at_least_one: expected a whole number >= 1, got 0"),
        ({"at_least_one": -(2**70)}, "at_least_one: expected a whole number >= 1"),
        ({"share": 1.01}, "share: expected a number <= 1.0, got 1.01"),
        ({"share": -0.01}, "share: expected a number >= 0.0, got -0.01"),
        ({"share": float("nan")}, "share: expected a number >= 0.0, got nan"),
        ({"pause": "0s"}, "pause: expected more than 0, got '0s'"),
        ({"pause": "0.4ms"}, "pause: expected more than 0, got '0.4ms'"),
        ({"most": "0.4B"}, "most: expected more than 0, got '0.4B'"),
        ({"most": "2e3B"}, "most: expected a number with a unit"),
        ({"age": "36500.1d"}, "age: expected at most 36500d, got '36500.1d'"),
        ({"room": f"{'9' * 400}GiB"}, "room: expected at most 1048576GiB"),
        ({"contrary": 1}, "contrary: unknown option; did you mean plugins.all.count?"),
        ({"zzzzzzzzzzzzzzzzzz": 1}, "zzzzzzzzzzzzzzzzzz: unknown option; known: plugins.all.text, plugins.all.flag"),
    ],
)
def test_a_wrong_value_is_refused_with_option_and_expected_form(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(**table)
    assert str(error.value).startswith(f"x.toml: plugins.all.{message}")


def test_the_error_of_a_list_entry_does_not_show_its_neighbours() -> None:
    with pytest.raises(ConfigError) as error:
        read(many=[{"id": "not for the log", "level": "high"}])
    assert "not for the log" not in str(error.value)


SECRET = "hunter2"


@pytest.mark.parametrize(
    "table",
    [
        {"secret": ["hunter2"]},
        {"secret": {"text": "hunter2"}},
        {"secret": {"text": "hunter2", "file": "hunter2"}},
        {"secret": {"file": ["hunter2"]}},
        {"secrets": "hunter2"},
        {"secrets": ["fine", {"hunter2": 1}]},
        {"secrets": ["hunter2", 1]},
        {"url": "hunter2"},
        {"url": ["redis://:hunter2@h"]},
        {"url": "redis://:hunter2 @h"},
        {"inner_secrets": {"key": "hunter2"}},
        {"inner_secrets": [{"key": "hunter2"}, "hunter2"]},
        {"inner_secrets": [{"key": ["hunter2"]}]},
    ],
)
def test_possible_secrets_are_in_no_message(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"x\.toml: sinks\.a\.{next(iter(table))}.*: expected") as error:
        read_options(Careful, table, path="sinks.a", source="x.toml", base=Path("/"))
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "localhost:1", "0.0.0.0:65535", "[::1]:8080", "[::]:0"])
def test_addresses(text: str) -> None:
    host, _, port = text.rpartition(":")
    assert Address.parse(text) == Address(host.strip("[]"), int(port))
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "8080", ":8080", "localhost", "localhost:", "localhost:65536", "localhost:-1", "localhost:http", "::1:80",
     "[::1]", "[::1]80", "[]:80", "[localhost]:80", "a:b:80", "localhost:080808", " localhost : 80", None, 80],
)  # fmt: skip
def test_texts_that_are_not_addresses(text: object) -> None:
    with pytest.raises(ValueError, match="expected an address and a port"):
        Address.parse(text)


UNITS: dict[type[Duration | Size], dict[str, float]] = {
    Duration: {"ms": 0.001, "s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60},
    Size: {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3},
}
UNIT = st.sampled_from([(type_, unit, factor) for type_, units in UNITS.items() for unit, factor in units.items()])


@given(st.integers(0, 36500), UNIT, st.sampled_from(["", " "]))
def test_a_number_with_a_unit_is_that_many_seconds_or_bytes(
    number: int, unit: tuple[type[Duration | Size], str, float], space: str
) -> None:
    type_, name, factor = unit
    parsed = type_.parse(f"{number}{space}{name}")
    assert isinstance(parsed, type_)
    assert parsed == pytest.approx(number * factor)
    assert type_.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "written"),
    [("0s", "0ms"), ("90s", "90s"), ("60m", "1h"), ("1.5h", "90m"), ("7d", "7d"), ("1001ms", "1001ms")],
)
def test_a_duration_is_written_in_its_largest_whole_unit(text: str, written: str) -> None:
    assert str(Duration.parse(text)) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [("0kB", "0B"), ("1024B", "1KiB"), ("1000B", "1kB"), ("1.5MiB", "1536KiB"), ("5GB", "5GB"), ("1001B", "1001B")],
)
def test_a_size_is_written_in_its_largest_whole_unit(text: str, written: str) -> None:
    assert str(Size.parse(text)) == written


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
