"""The terms in docs/glossary.md exist in the code, and the code uses no retired name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| `([^`|]+)` \|$", re.MULTILINE)
TERMS = ROW.findall((ROOT / "docs/glossary.md").read_text())

RETIRED = (
    "ApartJournal", "Claimed", "EntriesState", "Extent", "NotHolder", "Outline", "Renewals", "bury", "errand", "flying",
    "give_back", "give_order", "hang_up", "let_go", "rules_out", "turn_over", "hurried", "OneByOne", "Stretches",
    "Together", "Recaller", "Storing", "RecalledState", "begin_part", "distant", "unit of work",
)  # fmt: skip


def sources() -> list[Path]:
    return [path for folder in ("ingestd", "plugins", "testing") for path in sorted((ROOT / folder).rglob("*.py"))]


def names_of_the_code() -> set[str]:
    """The names of classes, modules, packages and variables, and texts that may name a field of a record."""
    names: set[str] = set()
    for path in sources():
        names.update(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        names.add(target.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                names.add(node.value)
    return names


def test_each_term_occurs_in_the_code() -> None:
    assert len(TERMS) > 30
    names = names_of_the_code()
    assert not [term for term, _, name in TERMS if name not in names]


def test_terms_are_sorted_and_unique() -> None:
    terms = [term for term, _, _ in TERMS]
    assert terms == sorted(set(terms))


def test_a_term_has_one_sentence() -> None:
    assert not [term for term, sentence, _ in TERMS if len(sentence.split()) > 25]


def test_a_retired_name_is_not_used_again() -> None:
    retired = re.compile(rf"\b(?:{'|'.join(RETIRED)})\b")
    assert not [(path, found) for path in sources() for found in retired.findall(path.read_text())]
