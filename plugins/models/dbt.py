"""`ingestd models dbt`: the models as a dbt package for PostgreSQL, ClickHouse and DuckDB."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ingestd.api.errors import CommandError
from ingestd.validation.schema_files import SchemaFile

from .catalogue import all_models
from .dialects import ClickHouse, Dialect, DuckDB, Postgres
from .model import Model

__all__ = ["files_of_package", "write_package"]

_MARK = "\ud800"
"""Stands around the names of references until all other text has been escaped. No name has half a character."""
_REPORT = "seeds/attribution_report.csv"
_ACCEPTED = {
    ("reversals", "reason"): ["refund", "cancel", "superseded"],
    ("attribution_touchpoints", "kind"): ["campaign", "click", "dispatch", "referrer", "others"],
    ("attribution_credits", "model"): ["last_touch", "first_touch", "linear", "position_based", "time_decay"],
    ("attribution_credits", "kind"): ["campaign", "click", "dispatch", "referrer", "others", "direct"],
}
_UNIQUE_TOGETHER = """{% test unique_together(model, columns) %}
SELECT {{ columns | join(', ') }} FROM {{ model }} GROUP BY {{ columns | join(', ') }} HAVING count(*) > 1
{% endtest %}
"""
_SUMS = """-- The sums of the models are those of `ingestd attribution report`, which has cents, if the seed has that.
SELECT currency, sum(orders) AS orders, sum(revenue) AS revenue, sum(reversed) AS reversed FROM (
  SELECT coalesce(currency, '') AS currency, orders, revenue, reversed FROM {{ ref('attribution_report') }}
  UNION ALL
  SELECT coalesce(currency, '') AS currency, CAST(-sum(m.orders) AS Decimal(38, 6)) AS orders,
    CAST(-sum(m.revenue) AS Decimal(38, 6)) AS revenue, CAST(-sum(m.reversed) AS Decimal(38, 6)) AS reversed
  FROM {{ ref('net_revenue_by_campaign_day') }} AS m WHERE m.is_credited GROUP BY currency
) AS differences
WHERE (SELECT count(*) FROM {{ ref('attribution_report') }}) > 0
GROUP BY currency
HAVING abs(sum(differences.orders)) > 0.0051 OR abs(sum(differences.revenue)) > 0.0051
  OR abs(sum(differences.reversed)) > 0.0051
"""


class _References:
    """References of dbt in place of the names of views and of the records."""

    def view(self, name: str) -> str:
        return f"{_MARK}ref('{name}'){_MARK}"


class _Postgres(_References, Postgres):
    pass


class _ClickHouse(_References, ClickHouse):
    pass


class _DuckDB(_References, DuckDB):
    @property
    def _from(self) -> str:
        return self.table


_SOURCE = f"{_MARK}source('ingestd', 'records'){_MARK}"


def write_package(folder: Path, files: Sequence[SchemaFile]) -> int:
    """Write the package to a folder, and remove models of former event keys. Returns the number of models.

    The report in the folder of seeds stays.
    """
    project = folder / "dbt_project.yml"
    if (
        folder.exists()
        and any(folder.iterdir())
        and not (project.exists() and '"name": "ingestd"' in project.read_text())
    ):
        raise CommandError(f"{folder} has other files: choose another folder")
    made = dict(files_of_package(files))
    for former in (folder / "models").glob("*.sql"):
        if str(former.relative_to(folder)) not in made:
            former.unlink()
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name != _REPORT or not path.exists():
            path.write_text(text, encoding="utf-8")
    return sum(name.startswith("models/") and name.endswith(".sql") for name in made)


def files_of_package(files: Sequence[SchemaFile]) -> Iterator[tuple[str, str]]:
    """The path in the package and the text of each file."""
    engines: list[Dialect] = [_Postgres(_SOURCE), _ClickHouse(_SOURCE), _DuckDB(_SOURCE)]
    listed = [all_models(files, engine)[:-1] for engine in engines]
    for same in zip(*listed, strict=True):
        branches = [
            f"{{% {'if' if engine is engines[0] else 'elif'} target.type == '{engine.name}' %}}\n"
            + _escaped(model.query(engine))
            for model, engine in zip(same, engines, strict=True)
        ]
        yield f"models/{same[0].name}.sql", "\n".join([*branches, "{% endif %}\n"])
    yield "models/models.yml", _yaml({"version": 2, "models": [_described(model) for model in listed[0]]})
    yield "models/sources.yml", _yaml({"version": 2, "sources": [_source()]})
    yield "tests/generic/unique_together.sql", _UNIQUE_TOGETHER
    yield "tests/sums_of_report.sql", _SUMS
    yield _REPORT, "currency,orders,revenue,reversed\n"
    types = {"currency": "varchar(40)", **dict.fromkeys(("orders", "revenue", "reversed"), "Decimal(38, 6)")}
    project = {
        "name": "ingestd", "version": "1.0.0", "config-version": 2, "profile": "ingestd",
        "models": {"ingestd": {"+materialized": "view"}},
        "seeds": {"ingestd": {"+quote_columns": True, "attribution_report": {"+column_types": types}}},
    }  # fmt: skip
    yield "dbt_project.yml", _yaml(project)


def _escaped(query: str) -> str:
    """The query for Jinja. Names of a shop may have braces."""
    parts = query.split(_MARK)
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = f"{{{{ {part} }}}}"
        elif any(each in part for each in ("{{", "{%", "{#")):
            parts[index] = part.replace("{", "{{ '{' }}")
    return "".join(parts)


def _yaml(value: dict[str, Any]) -> str:
    """JSON is YAML."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _described(model: Model) -> dict[str, Any]:
    columns: list[dict[str, Any]] = []
    for column in model.columns:
        tests: list[Any] = ["unique", "not_null"] if [*model.unique] == [column.name] else []
        if accepted := _ACCEPTED.get((model.name, column.name)):
            tests.append({"accepted_values": {"values": accepted}})
        columns.append(
            {"name": column.name, "description": _plain(column.description)} | ({"tests": tests} if tests else {})
        )
    found: dict[str, Any] = {"name": model.name, "description": _plain(model.description), "columns": columns}
    if len(model.unique) > 1:
        found["tests"] = [{"unique_together": {"columns": [*model.unique]}}]
    return found


def _plain(text: str) -> str:
    """A text that dbt does not take for Jinja, and that UTF-8 has."""
    return text.replace("{", "(").replace("}", ")").encode("utf-8", "replace").decode()


def _source() -> dict[str, Any]:
    files = (
        "read_parquet('{{ var('ingestd_lake', 'lake') }}/**/*.parquet', hive_partitioning = true, union_by_name = true)"
    )
    return {
        "name": "ingestd",
        "schema": "{{ var('ingestd_schema', 'public' if target.type == 'postgres' else 'default') }}",
        "tables": [
            {
                "name": "records",
                "identifier": "{{ var('ingestd_table', 'ingestd_records') }}",
                "description": "The records as the sink writes them",
                "config": {
                    "loaded_at_field": "received_at",
                    "freshness": {
                        "warn_after": {"count": 1, "period": "hour"}, "error_after": {"count": 1, "period": "day"},
                    },
                    "meta": {"external_location": files},
                },
                "columns": [{"name": "id", "tests": ["not_null"]}],
            }
        ],
    }  # fmt: skip
