from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.plugins.auth.ecmascript import canonical

Rewrite = Callable[[bytes], bytes | None]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        # numbers are doubles, in the shortest text that reads back as the same double
        ("9007199254740993", "9007199254740992"),
        ("1152921504606846976", "1152921504606847000"),
        ("123456789012345680000", "123456789012345680000"),
        ("999999999999999999999", "1e+21"),
        ("1e21", "1e+21"),
        ("1.25E+22", "1.25e+22"),
        ("1e16", "10000000000000000"),
        ("12345.678e2", "1234567.8"),
        ("0.000001", "0.000001"),
        ("1.5e-6", "0.0000015"),
        ("0.0000001", "1e-7"),
        ("-1.25e-9", "-1.25e-9"),
        ("4.350", "4.35"),
        ("40.00", "40"),
        ("-0", "0"),
        ("-0.0e5", "0"),
        ("5e-324", "5e-324"),
        ("1e-400", "0"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("[0.0001,0.00001]", "[0.0001,0.00001]"),
        ("[123456789012345.5,1e15,-2.5E1]", "[123456789012345.5,1000000000000000,-25]"),
        ("[9007199254740992.0,9007199254740994.0]", "[9007199254740992,9007199254740994]"),
        ("1e400", "null"),
        ("-1e400", "null"),
        ("1" * 400, "null"),
        # strings
        ('"\\u2028\\u2029 \u2028\u2029"', '"\u2028\u2029 \u2028\u2029"'),
        ('"\\u00e9\\/\\ud83d\\ude00"', '"é/😀"'),
        ('"\\uD800 \\uDFFF\\ud83d"', '"\\ud800 \\udfff\\ud83d"'),
        ('"\\uDE00\\uD83D"', '"\\ude00\\ud83d"'),
        (
            '"\\u0000\\u001F\\u0008\\u0009\\u000a\\u000b\\u000c\\u000d\x7f"',
            '"\\u0000\\u001f\\b\\t\\n\\u000b\\f\\r\x7f"',
        ),
        ('"\\"\\\\"', '"\\"\\\\"'),
        # objects: array indices first, sorted; then the other names in their order
        (
            '{"b": 1, "10": 2, "9": 3, "a": 4, "01": 5, "-1": 6, "1.0": 7, "0": 8}',
            '{"0":8,"9":3,"10":2,"b":1,"a":4,"01":5,"-1":6,"1.0":7}',
        ),
        ('{"4294967296":1,"4294967295":2,"4294967294":3}', '{"4294967294":3,"4294967296":1,"4294967295":2}'),
        ('{"a":1,"b":2,"a":3}', '{"a":3,"b":2}'),
        ('{"2":1,"\\u0031":2,"1":3}', '{"1":3,"2":1}'),
        ('{"x":1,"__proto__":{"y":2},"constructor":3}', '{"x":1,"__proto__":{"y":2},"constructor":3}'),
        ('{"\\ud800":1}', '{"\\ud800":1}'),
        ('{"٣":1,"1":2}', '{"1":2,"٣":1}'),
        # the rest
        (" \t\r\n[ true , false , null , [ ] , { } ] ", "[true,false,null,[],{}]"),
        ('"top"', '"top"'),
    ],
)
def test_values_are_written_as_by_ecmascript(document: str, expected: str) -> None:
    assert canonical(document.encode()) == expected.encode()


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b" ",
        b"\xef\xbb\xbf{}",
        b"\xff",
        b'"\xed\xa0\x80"',
        b"{}\x00",
        b"{}{}",
        b"[1,]",
        b'{"a":1,}',
        b"{a:1}",
        b"{'a':1}",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"[NaN]",
        b"undefined",
        b"True",
        b"01",
        b"-",
        b"+1",
        b".5",
        b"1.",
        b"1e",
        b"0x10",
        b'"\n"',
        b'"\t"',
        b'"\\x41"',
        b'"\\u12"',
        b'"\\u+123"',
        b'"open',
        b"\x0b1",
        b"\xc2\xa01",
        "٣".encode(),
        '"\\u004\u0661"'.encode(),
        b"// comment\n1",
        b"[" * 200_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_texts_that_json_parse_refuses(document: bytes) -> None:
    assert canonical(document) is None


_whitespace = st.text(alphabet=" \t\r\n", max_size=2)
_numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.from_regex(
        r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?",
        fullmatch=True,
        alphabet=st.characters(max_codepoint=127),
    ),
)
_strings = st.lists(
    st.one_of(
        st.characters(codec="utf-8").map(lambda char: json.dumps(char, ensure_ascii=False)[1:-1]),
        st.integers(0, 0xFFFF).map(lambda unit: f"\\u{unit:04x}"),
        st.integers(0xD700, 0xE000).map(lambda unit: f"\\u{unit:04X}"),
        st.sampled_from([r"\"", r"\\", r"\/", r"\b", r"\f", r"\n", r"\r", r"\t"]),
    ),
    max_size=6,
).map(lambda parts: f'"{"".join(parts)}"')
_keys = st.one_of(
    _strings,
    st.integers(0, 12).map(lambda index: f'"{index}"'),
    st.integers(2**32 - 4, 2**32 + 2).map(lambda index: f'"{index}"'),
    st.sampled_from(['"a"', '"b"', '"01"', '"-0"', '"1e3"', '"__proto__"', '"constructor"', '"toJSON"', '""']),
)
_scalars = st.one_of(_numbers, _strings, st.sampled_from(["true", "false", "null"]))


def _containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(_keys, _whitespace, _whitespace, values).map(lambda m: f"{m[1]}{m[0]}:{m[2]}{m[3]}")
    return st.one_of(
        st.lists(values, max_size=5).map(lambda items: f"[{','.join(items)}]"),
        st.lists(member, max_size=8).map(lambda members: f"{{{','.join(members)}}}"),
    )


_documents = st.tuples(_whitespace, st.recursive(_scalars, _containers, max_leaves=20), _whitespace).map("".join)
# Texts close to JSON, most of them invalid.
_scribbles = st.text(alphabet='{}[]",:\\u0123456789eE+-. \n\ttrufalsn\ufeff\u00a0', max_size=14)

_NODE_SCRIPT = """
require('readline').createInterface({ input: process.stdin }).on('line', line => {
  const text = Buffer.from(line, 'hex').toString('utf8');
  let answer;
  try { answer = Buffer.from(JSON.stringify(JSON.parse(text)), 'utf8').toString('hex'); } catch { answer = 'refused'; }
  process.stdout.write(answer + '\\n');
});
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Rewrite]:
    """JSON.stringify(JSON.parse(…)) of Node.js, in one process for all documents."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not on PATH: the comparison with a real ECMAScript engine cannot run")
    with subprocess.Popen([program, "-e", _NODE_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def rewrite(document: bytes) -> bytes | None:
            stdin.write(document.hex().encode() + b"\n")
            stdin.flush()
            answer = stdout.readline().decode().strip()
            return None if answer == "refused" else bytes.fromhex(answer)

        yield rewrite


@given(document=_documents)
def test_documents_come_out_as_node_writes_them(node: Rewrite, document: str) -> None:
    body = document.encode()
    rewritten = canonical(body)
    assert rewritten is not None
    assert rewritten == node(body)


@given(scribble=_scribbles)
def test_texts_that_node_refuses_are_refused(node: Rewrite, scribble: str) -> None:
    assert canonical(scribble.encode()) == node(scribble.encode())


@given(_documents)
def test_other_members_of_a_document_change_nothing(document: str) -> None:
    """Python's encoder writes a document if it agrees with ECMAScript. Each of these members prevents that."""
    alone = canonical(document.encode())
    assert alone is not None
    for other in (b"1e-7", b'{"1":0}', b"12345678901234567000"):
        assert canonical(b"[%s,%s]" % (document.encode(), other)) == b"[%s,%s]" % (alone, other)


@given(_documents)
def test_rewriting_again_changes_nothing(document: str) -> None:
    rewritten = canonical(document.encode())
    assert rewritten is not None
    assert canonical(rewritten) == rewritten


@given(st.binary(max_size=40))
def test_any_bytes_are_rewritten_or_refused(body: bytes) -> None:
    rewritten = canonical(body)
    assert rewritten is None or canonical(rewritten) == rewritten
