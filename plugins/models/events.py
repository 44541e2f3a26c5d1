"""The models of event keys: a view for each key, and one for each array of objects in its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ingestd.support.column_names import distinct, snake_case
from ingestd.support.schema_members import OF_EVENT, Member, Schemas
from ingestd.validation.schema_files import SchemaFile

from .dialects import Dialect
from .model import Column, Model

__all__ = ["event_models"]


def event_models(files: Sequence[SchemaFile], taken: Iterable[str], dialect: Dialect) -> Iterator[Model]:
    """`taken` are names of other models. A shop's key never takes the name of a built-in one."""
    schemas = Schemas({file.uri: file.schema for file in files})
    found = {
        file.key: (file, schemas.members(file.uri))
        for file in sorted(files, key=lambda each: (not each.builtin, each.key or ""))
        if file.key is not None
    }
    views: dict[tuple[str, tuple[str, ...]], str] = {}
    for builtin in (True, False):
        chosen = {key: members for key, (file, members) in found.items() if file.builtin is builtin}
        views |= {(key, ()): key for key in chosen}
        for key, members in chosen.items():
            views |= {(key, each.path): f"{key} {'_'.join(each.path)}" for each in members if each.items}
    names = distinct(views, {*taken})
    for key, (file, members) in found.items():
        yield _of_key(key, str(file.schema.get("description", "")), members, names[key, ()], dialect)
        for member in members:
            if member.items:
                yield _of_rows(key, member, names[key, member.path], dialect)


def _head(dialect: Dialect) -> list[Column]:
    return [
        Column("event_id", "text", "r.id", "id of the record"),
        Column("tenant", "text", "r.tenant", "the shop"),
        Column("event_at", "time", "r.event_at", "time of the event"),
        Column("received_at", "time", "r.received_at", "time of receipt"),
        Column("received_on", "day", dialect.day("r.received_at"), "day of receipt, in UTC"),
        Column("anonymous_id", "text", "r.anonymous_id", "the visitor"),
        Column("user_id", "text", "r.user_id", "the user, if known"),
        Column("session_id", "text", "r.session_id", "the session"),
    ]


def _of_key(key: str, description: str, members: Sequence[Member], name: str, dialect: Dialect) -> Model:
    columns = _head(dialect)
    columns += [
        Column(column, kind, dialect.read(dialect.path("r.record", *path), kind), about)
        for column, kind, path, about in OF_EVENT
    ]
    columns.append(Column("data", "json", "r.data", "the whole payload, also members that no schema knows"))
    columns += _of_members(members, "r.data", columns, dialect)
    records = f"SELECT *, {dialect.member('record', 'data')} AS data FROM {dialect.records('event', key=key)} AS e"
    return Model(name, f"{key}: {description}", columns, f"FROM ({records}) AS r", ["event_id"])


def _of_rows(key: str, member: Member, name: str, dialect: Dialect) -> Model:
    columns = _head(dialect)
    columns.append(Column("number", "integer", dialect.cast("r.number", "integer"), "place in the array, from 1"))
    inner = _of_members(member.items, "r.item", columns, dialect)
    columns += inner
    by_name = {each.name: each.sql for each in inner if each.kind == "decimal"}
    if "price" in by_name and all(each.name != "amount" for each in columns):
        quantity = f"coalesce({by_name['quantity']}, 1)" if "quantity" in by_name else "1"
        columns.append(
            Column(
                "amount",
                "decimal",
                dialect.worth(by_name["price"], quantity),
                "price times quantity, which is 1 if missing",
            )
        )
    array = dialect.path("record", "data", *member.path)
    rows = dialect.rows(dialect.records("event", key=key), array)
    about = f"{key}: a row for each element of `{'.'.join(member.path)}`"
    return Model(name, about, columns, f"FROM {rows} AS r", ["event_id", "number"])


def _of_members(members: Sequence[Member], value: str, before: Sequence[Column], dialect: Dialect) -> list[Column]:
    """The columns of members. One with the name of a column before them begins with `data_`."""
    taken = {each.name for each in before}
    texts = {each.path: "/".join(each.path) for each in members}
    texts = {path: f"data/{text}" if snake_case(text) in taken else text for path, text in texts.items()}
    # A member that is written like a column keeps the name, whatever stands before it.
    names = distinct(dict(sorted(texts.items(), key=lambda item: item[1] != snake_case(item[1]))), taken)
    return [
        Column(
            names[each.path],
            each.kind,
            dialect.read(dialect.path(value, *each.path), each.kind),
            each.description,
        )
        for each in members
    ]
