"""All models of a warehouse, and the statements that make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestd.validation.schema_files import SchemaFile

from . import orders, visits
from .dialects import Dialect
from .events import event_models
from .model import Column, Model

__all__ = ["MODELS", "all_models", "list_of", "statements"]

MODELS = "ingestd_models"
"""The view that lists the models, each with a digest of its query. `ingestd check` compares them."""


def all_models(files: Sequence[SchemaFile], dialect: Dialect) -> list[Model]:
    """The models, each behind those that it reads."""
    taken = (*orders.NAMES, *visits.NAMES, MODELS)
    models = [*event_models(files, taken, dialect), *orders.order_models(dialect), *visits.visit_models(dialect)]
    return [*models, list_of({each.name: each.digest(dialect) for each in models}, dialect)]


def list_of(digests: Mapping[str, str], dialect: Dialect) -> Model:
    """The view with the digest of each model, of a view that is not finished an empty one."""
    rows = [
        f"SELECT {number} AS number, '{name}' AS model, '{digest}' AS digest"
        for number, (name, digest) in enumerate(digests.items(), 1)
    ]
    columns = [
        Column("number", "integer", dialect.cast("m.number", "integer"), "place, behind the views that it reads"),
        Column("model", "text", "m.model", "name of the view"),
        Column("digest", "text", "m.digest", "a digest of its query"),
        Column("records", "text", dialect.literal(dialect.table), "the table or the files that it reads"),
    ]
    body = "FROM (" + "\n  UNION ALL ".join(rows) + ") AS m"
    return Model(MODELS, "The models, for `ingestd check`", columns, body, ["model"])


def statements(models: Sequence[Model], dialect: Dialect) -> list[str]:
    """What makes the views, or replaces them."""
    return [f"CREATE OR REPLACE VIEW {dialect.view(each.name)} AS\n{each.query(dialect)}" for each in models]
