"""The plugin `scrub`: the members that its pointers select, and their replacements."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import ConfigError
from ingestd.api.events import Endpoint, Event
from ingestd.api.options import read_options
from ingestd.plugins.scrub import ScrubPlugin

SECRET = "thirty-two random characters...."


def make(**table: Any) -> ScrubPlugin:
    options = read_options(ScrubPlugin.Options, table, path="plugins.scrub", source="x.toml", base=Path("/"))
    return ScrubPlugin(options)


def scrubbed(plugin: ScrubPlugin, **fields: Any) -> Event:
    event = Event(
        id="e", type="event", tenant="shop", endpoint=Endpoint.TRACK, received_at=0, timestamp=0, key="Page View",
        anonymous_id="a", user_id=None, session_id=None, session_is_new=False, dispatch_id=None, message_id=None,
        **{"data": {}, "traits": {}, "context": {}, "extra": {}, **deepcopy(fields)},
    )  # fmt: skip
    plugin.prepare(event)
    return event


def hashed(message: bytes) -> str:
    return hmac.new(SECRET.encode(), message, "sha256").hexdigest()


def test_only_the_member_of_a_pointer_is_dropped() -> None:
    plugin = make(
        drop=[
            "/data/card", "/data/products/*/note", "/data/list/1", "/data/a~1b/~0", "/data/list/9", "/data/card/x",
            "/traits/*", "/context/ip", "/extra/rows/*/*", "/data/text/0", "/data/", "/data/list/01",
        ]
    )  # fmt: skip
    event = scrubbed(
        plugin,
        data={
            "card": {"x": 1}, "products": [{"note": "n", "sku": "s"}, {"sku": "t"}, "note", None], "list": [1, 2, 3],
            "a/b": {"~": 1, "c": 2}, "text": "0", "": 7, "note": "stays",
        },
        traits={"email": "e", "plan": ["gold"]},
        context={"ip": "192.0.2.1", "page": {"url": "/"}},
        extra={"rows": [[1, 2], {"a": 3}, 4]},
    )  # fmt: skip
    assert event.data == {
        "products": [{"sku": "s"}, {"sku": "t"}, "note", None], "list": [1, 3], "a/b": {"c": 2}, "text": "0",
        "note": "stays",
    }  # fmt: skip
    assert (event.traits, event.context) == ({}, {"page": {"url": "/"}})
    assert event.extra == {"rows": [[], {}, 4]}


def test_a_hash_depends_on_the_value_and_the_secret() -> None:
    plugin = make(hash=["/traits/*", "/data/rows/*"], drop=["/data/rows/0"], secret=SECRET)
    traits = {"email": "jürgen@shop.example", "age": 40, "tags": {"b": 1.5, "a": [True]}, "none": None}
    event = scrubbed(plugin, traits=traits, data={"rows": ["gone", "a", "a"]})
    assert event.traits == {
        "email": hashed("jürgen@shop.example".encode()),
        "age": hashed(b"40"),
        "tags": hashed(b'{"a":[true],"b":1.5}'),
        "none": None,
    }
    assert event.data == {"rows": [hashed(b"a")] * 2}


def test_hashes_of_very_short_members_have_a_bound_in_each_event() -> None:
    """Everything beyond it is removed. Members of a usual cart are never beyond it."""
    plugin = make(hash=["/data/rows/*", "/data/products/*/sku"], secret=SECRET)
    for _ in range(2):
        event = scrubbed(plugin, data={"rows": [1] * 20_000})
        assert 30 < len(event.data["rows"]) < 50
        assert set(event.data["rows"]) == {hashed(b"1")}
    products = [{"sku": f"{number:05}"} for number in range(1_000)]
    event = scrubbed(plugin, data={"products": products})
    assert event.data["products"] == [{"sku": hashed(each["sku"].encode())} for each in products]


def test_a_pointer_into_traits_covers_every_place_where_sdks_have_traits() -> None:
    plugin = make(
        drop=["/traits/phone", "/traits/address/city"], hash=["/traits/email", "/context/traits/phone", "/traits/x*"],
        secret=SECRET,
    )  # fmt: skip
    traits = {"email": "e", "phone": "p", "plan": "gold", "address": {"city": "c"}}
    left = {"email": hashed(b"e"), "plan": "gold", "address": {}}
    groups = {"groups": {"g": traits, "h": {"email": "f"}}}
    event = scrubbed(plugin, traits={**traits, **groups}, context={"traits": traits}, extra={"traits": traits})
    assert event.traits == {**left, "groups": {"g": left, "h": {"email": hashed(b"f")}}}
    assert event.context == {"traits": left}  # what is dropped is not hashed
    assert event.extra == {"traits": left}
    every = scrubbed(
        make(hash=["/traits/*", "/context/traits/email"], secret=SECRET), context={"traits": {"email": "e", "a": "b"}}
    )
    assert every.context == {"traits": {"email": hashed(b"e"), "a": hashed(b"b")}}


NAMES = st.sampled_from(["a", "b", "*", "0", "1", "a/b", "~"])
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
TOKENS = st.lists(NAMES, min_size=1, max_size=4)


def without(value: Any, tokens: Sequence[str]) -> Any:
    """A copy of the value without the members that the pointer's tokens select."""
    token, rest = tokens[0], tokens[1:]
    if isinstance(value, dict):
        pairs = [(name, each, token in {"*", name}) for name, each in value.items()]
        return {name: without(each, rest) if hit else each for name, each, hit in pairs if rest or not hit}
    if isinstance(value, list):
        hits = [(each, token in {"*", str(index)}) for index, each in enumerate(value)]
        return [without(each, rest) if hit else each for each, hit in hits if rest or not hit]
    return value


def members(value: Any, tokens: Sequence[str]) -> list[Any]:
    """The members that the pointer's tokens select."""
    if not tokens:
        return [value]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, each in pairs if tokens[0] in {"*", str(name)} for found in members(each, tokens[1:])]


@given(st.dictionaries(NAMES, VALUES, max_size=4), TOKENS)
def test_any_pointer_drops_exactly_its_members_of_any_data(data: dict[str, Any], tokens: list[str]) -> None:
    pointer = "/".join(["/data", *(token.replace("~", "~0").replace("/", "~1") for token in tokens)])
    assert scrubbed(make(drop=[pointer]), data=data).data == without(data, tokens)
    hashed_data = scrubbed(make(hash=[pointer], secret=SECRET), data=data).data
    assert without(hashed_data, tokens) == without(data, tokens), "other members are unchanged"
    assert all(each is None or len(each) == 64 for each in members(hashed_data, tokens))


@pytest.mark.parametrize(
    ("pointer", "told"),
    [
        ("data/card", "expected a JSON pointer below /data"),
        ("", "expected a JSON pointer below /data"),
        ("/", "expected a JSON pointer below /data"),
        ("/userId", "expected a JSON pointer below /data"),
        ("/dat/card", "did you mean /data/card?"),
        ("/trait/email", "did you mean /traits/email?"),
        ("/data", "/data/* stands for everything in /data"),
        ("/data/a~b", "~0 stands for ~"),
        (7, "expected a JSON pointer below /data"),
    ],
)
@pytest.mark.parametrize("option", ["drop", "hash"])
def test_an_invalid_pointer_is_refused_with_its_option(option: str, pointer: object, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(**{option: ["/data/fine", pointer]}, secret=SECRET)
    assert str(error.value).startswith(f"x.toml: plugins.scrub.{option}[1]: ")
    assert told in str(error.value)
    assert repr(pointer) in str(error.value)


def test_hash_without_a_good_secret_or_with_conflicting_pointers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"plugins\.scrub\.secret: must be given"):
        make(hash=["/data/a"])
    with pytest.raises(ConfigError, match=r"plugins\.scrub\.secret: expected at least 16") as error:
        make(hash=["/data/a"], secret="hunter2")
    assert "hunter2" not in str(error.value)
    with pytest.raises(ConfigError, match=r"plugins\.scrub\.hash\[1\]: /data/a is in drop too"):
        make(drop=["/data/a"], hash=["/data/b", "/data/a"], secret=SECRET)
    make(hash=["/data/*", "/data/a/*", "/traits/a", "/context/*/a"], secret=SECRET)
    for one, other in (("/data/a", "/data/a"), ("/data/*/b", "/data/a/*"), ("/data/1", "/data/*")):
        with pytest.raises(
            ConfigError, match=r"plugins\.scrub\.hash\[1\]: .* may name the same member as .*; remove one"
        ):
            make(hash=[one, other], secret=SECRET)


def test_without_a_pointer_there_is_no_hook() -> None:
    assert not hasattr(make(), "prepare")
    assert not hasattr(make(secret=SECRET), "prepare")
