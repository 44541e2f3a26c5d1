"""A model: a view with named and typed columns, and what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from ingestd.support.schema_members import Kind

from .dialects import Dialect

__all__ = ["Column", "Model"]


class Column(NamedTuple):
    name: str
    kind: Kind
    sql: str
    description: str = ""


class Model(NamedTuple):
    name: str
    description: str
    columns: Sequence[Column]
    body: str
    """What follows the columns: FROM and the rest."""
    unique: Sequence[str] = ()
    """The columns that tell rows apart."""
    needs: Sequence[str] = ()
    """The models that it reads."""

    def query(self, dialect: Dialect) -> str:
        columns = ",\n       ".join(f"{each.sql} AS {dialect.quoted(each.name)}" for each in self.columns)
        return f"SELECT {columns}\n{self.body}"

    def digest(self, dialect: Dialect) -> str:
        """Tells this query from others of the same name."""
        return sha256(self.query(dialect).encode("utf-8", "surrogatepass")).hexdigest()[:12]
