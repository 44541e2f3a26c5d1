"""JSON that a stranger wrote is decoded as msgspec does it, but in a time that depends on its length."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.support.json_text import decode_json

NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.from_regex(
    r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?0{0,3}[0-9]{1,3})?", fullmatch=True
)


def outcome(decode: Callable[[bytes], Any], body: bytes) -> str:
    try:
        return repr(decode(body))
    except msgspec.DecodeError as error:
        return str(error)


@given(st.lists(NUMBERS, max_size=20), st.sampled_from([0, 9000]))
def test_a_number_is_the_one_that_msgspec_reads(numbers: list[str], padding: int) -> None:
    body = f'{{"a":[{",".join(numbers)}],"b":"{"x" * padding}"}}'.encode()
    assert outcome(decode_json, body) == outcome(msgspec.json.decode, body)


def seconds(decode: Callable[[bytes], Any], body: bytes) -> float:
    begun = time.process_time()
    decode(body)
    return time.process_time() - begun


@pytest.mark.parametrize("number", ["1e308", "5E-324", "1e+0000308", "8.98e307", "1.7976931348623157e308"])
@pytest.mark.parametrize("count", [1_000, 50_000])
def test_numbers_near_the_limits_take_no_longer_than_with_python(number: str, count: int) -> None:
    bodies = [f"[{','.join([number] * part)}]".encode() for part in [count] * (50_000 // count)]
    assert math.isfinite(decode_json(bodies[0])[0])
    taken = [[sum(seconds(decode, body) for body in bodies) for decode in (decode_json, json.loads)] for _ in range(3)]
    assert min(ours / python for ours, python in taken) < 5
