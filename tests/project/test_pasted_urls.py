"""URLs in messages can be pasted: a terminal takes a dot, comma or bracket behind one as a part of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPOILT = re.compile(r"""[a-z][a-z+]+://[^\s"'`\\]*[.,;:!?)\]](?=\s|$)|\{(?:\w+\.)*url\}[.,;)\]]""")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module without its docstrings. A value in an f-string is `{url}` if its name ends so, or `{}`."""
    source = path.read_text()
    if "://" not in source and "url" not in source:  # most modules, and parsing takes long
        return
    tree = ast.parse(source)
    left_out: set[ast.AST] = {each.value for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {*node.values}
            parts = (
                str(each.value) if isinstance(each, ast.Constant)
                else "{url}" if isinstance(each, ast.FormattedValue) and ast.unparse(each.value).endswith("url")
                else "x"
                for each in node.values
            )  # fmt: skip
            yield node.lineno, "".join(parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.lineno, node.value


def test_no_punctuation_follows_a_url() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for folder in ("ingestd", "plugins", "testing", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "ingestd/plugins" not in str(path)
        for line, text in texts(path)
        for match in SPOILT.finditer(text)
    ]
    assert found == []
