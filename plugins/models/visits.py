"""The models of visits: sessions, visitors, and profiles with their current traits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .dialects import Dialect
from .model import Column, Model

__all__ = ["NAMES", "visit_models"]

NAMES = ("sessions", "visitors", "profile_traits", "profiles")
"""In this order each reads only models before it."""

_OLDEST, _NEWEST = "received_at, position", "received_at DESC, position DESC"
_PROFILE = ("tenant", "user_id", "anonymous_id")


def visit_models(dialect: Dialect) -> Iterator[Model]:
    yield _sessions(dialect)
    yield _visitors(dialect)
    yield _traits(dialect)
    yield _profiles(dialect)


def _place(group: Sequence[str], condition: str, order: str) -> str:
    """The place of a record among those of its group, those with the condition first."""
    return (
        f"row_number() OVER (PARTITION BY {', '.join(group)} ORDER BY CASE WHEN {condition} THEN 0 ELSE 1 END, {order})"
    )


def _counts(dialect: Dialect, records: str) -> list[Column]:
    order_id = dialect.text("r.record", "data", "order_id")
    order = f"CASE WHEN r.key = 'Order Completed' THEN coalesce({order_id}, r.id) END"
    return [
        Column("events", "integer", _count(dialect, "r.type = 'event'"), f"events of the {records}"),
        Column("page_views", "integer", _count(dialect, "r.key = 'Page View'"), "`Page View` among them"),
        Column(
            "orders", "integer",
            dialect.cast(f"count(DISTINCT {order})", "integer"),
            "`Order Completed` among them, each order once",
        ),
    ]  # fmt: skip


def _count(dialect: Dialect, condition: str) -> str:
    return dialect.cast(f"sum(CASE WHEN {condition} THEN 1 ELSE 0 END)", "integer")


def _sessions(dialect: Dialect) -> Model:
    group = ("tenant", "session_id")
    campaign = [dialect.text("e.record", "context", "campaign", name) for name in ("source", "medium", "name")]
    tagged = f"coalesce({', '.join(campaign)}) IS NOT NULL"
    records = (
        "SELECT e.*, "
        + ", ".join(f"{sql} AS {name}" for sql, name in zip(campaign, ("source", "medium", "campaign"), strict=True))
        + f", {_place(group, 'TRUE', _OLDEST)} AS from_first, {_place(group, tagged, _OLDEST)} AS from_campaign"
        f", {_place(group, 'user_id IS NOT NULL', _NEWEST)} AS from_user"
        f" FROM {dialect.records('event', 'identify')} AS e WHERE session_id IS NOT NULL"
    )

    def first(sql: str, place: str = "from_first") -> str:
        return f"max(CASE WHEN r.{place} = 1 THEN {sql} END)"

    page = dialect.text("r.record", "context", "page", "url")
    referrer = dialect.text("r.record", "context", "page", "referrer")
    began, ended = "min(r.received_at)", "max(r.received_at)"
    columns = [
        Column("tenant", "text", "r.tenant", "the shop"),
        Column("session_id", "text", "r.session_id", "the session"),
        Column("anonymous_id", "text", first("r.anonymous_id"), "the visitor of its first record"),
        Column("user_id", "text", first("r.user_id", "from_user"), "the user that was known last in it"),
        Column("started_at", "time", began, "receipt of its first event or identify request"),
        Column("started_on", "day", dialect.day(began), "its day, in UTC"),
        Column("ended_at", "time", ended, "receipt of its last one"),
        Column(
            "seconds", "integer", dialect.cast(dialect.seconds(began, ended), "integer"), "whole seconds between them"
        ),
        *_counts(dialect, "session"),
        Column("landing_url", "text", first(page), "page of its first record"),
        Column("referrer", "text", first(referrer), "the page before that"),
        Column("source", "text", first("r.source", "from_campaign"), "of the first campaign sent in it"),
        Column("medium", "text", first("r.medium", "from_campaign"), "of the same"),
        Column("campaign", "text", first("r.campaign", "from_campaign"), "name of the same"),
    ]
    return Model(
        "sessions", "Each session once", columns, f"FROM ({records}) AS r\nGROUP BY r.tenant, r.session_id",
        ["tenant", "session_id"],
    )  # fmt: skip


def _visitors(dialect: Dialect) -> Model:
    group = ("tenant", "anonymous_id")
    records = (
        f"SELECT e.*, {_place(group, 'user_id IS NOT NULL', _NEWEST)} AS from_user"
        f" FROM {dialect.records('event', 'identify')} AS e WHERE anonymous_id IS NOT NULL"
    )
    columns = [
        Column("tenant", "text", "r.tenant", "the shop"),
        Column("anonymous_id", "text", "r.anonymous_id", "the visitor"),
        Column("user_id", "text", "max(CASE WHEN r.from_user = 1 THEN r.user_id END)", "the user known last"),
        Column("first_seen_at", "time", "min(r.received_at)", "receipt of the first event or identify request"),
        Column("first_seen_on", "day", dialect.day("min(r.received_at)"), "its day, in UTC"),
        Column("last_seen_at", "time", "max(r.received_at)", "receipt of the last one"),
        Column("sessions", "integer", dialect.cast("count(DISTINCT r.session_id)", "integer"), "sessions"),
        *_counts(dialect, "visitor"),
    ]
    return Model(
        "visitors", "Each visitor once", columns, f"FROM ({records}) AS r\nGROUP BY r.tenant, r.anonymous_id",
        ["tenant", "anonymous_id"],
    )  # fmt: skip


def _traits(dialect: Dialect) -> Model:
    """The newest value of each trait. The traits of a visitor go to the user of its first link, with their times."""
    linked = f"user_id IS NOT NULL AND coalesce({dialect.boolean(dialect.member('record', 'linked'))}, TRUE)"
    records = (
        f"(SELECT i.*, {dialect.member('record', 'traits')} AS traits,"
        f" CASE WHEN {linked} THEN 1 ELSE 0 END AS is_linked,"
        f" {_place(('tenant', 'anonymous_id'), linked, _OLDEST)} AS from_link FROM {dialect.records('identify')} AS i)"
    )
    own = (
        "SELECT tenant, CASE WHEN is_linked = 1 THEN user_id END AS user_id,"
        " CASE WHEN is_linked = 0 THEN anonymous_id END AS anonymous_id, received_at, position, traits"
        f" FROM {records} AS w"
    )
    copied = (
        "SELECT v.tenant AS tenant, l.user_id AS user_id, CASE WHEN 1 = 0 THEN v.anonymous_id END AS anonymous_id,"
        " v.received_at AS received_at, v.position AS position, v.traits AS traits"
        f" FROM {records} AS v JOIN {records} AS l ON l.tenant = v.tenant AND l.anonymous_id = v.anonymous_id"
        " WHERE v.is_linked = 0 AND l.is_linked = 1 AND l.from_link = 1"
        " AND (v.received_at < l.received_at OR v.received_at = l.received_at AND v.position < l.position)"
    )
    rows = dialect.entries(f"({own} UNION ALL {copied})", "traits")
    newest = f"SELECT t.*, {_place((*_PROFILE, 'name'), 'TRUE', _NEWEST)} AS from_newest FROM {rows} AS t"
    columns = [
        Column("tenant", "text", "r.tenant", "the shop"),
        Column("user_id", "text", "r.user_id", "the user, if the profile is a user's"),
        Column("anonymous_id", "text", "r.anonymous_id", "the visitor, if the profile is a visitor's"),
        Column("name", "text", "r.name", "name of the trait"),
        Column("value", "json", "r.item", "its newest value"),
        Column("text", "text", dialect.text("r.item"), "the same, if it is a text"),
        Column("received_at", "time", "r.received_at", "when that was received"),
    ]
    return Model(
        "profile_traits", "Each trait of each profile", columns, f"FROM ({newest}) AS r\nWHERE r.from_newest = 1",
        [*_PROFILE, "name"],
    )  # fmt: skip


def _profiles(dialect: Dialect) -> Model:
    columns = [
        Column("tenant", "text", "r.tenant", "the shop"),
        Column("user_id", "text", "r.user_id", "the user, if the profile is a user's"),
        Column("anonymous_id", "text", "r.anonymous_id", "the visitor, if the profile is a visitor's"),
        *[
            Column(
                column, "text", f"max(CASE WHEN r.name = '{name}' THEN r.text END)", f"the trait `{name}`, if a text"
            )
            for column, name in (("email", "email"), ("first_name", "firstName"), ("last_name", "lastName"))
        ],
        Column("traits", "json", dialect.object_of("r.name", "r.value"), "all traits"),
        Column("updated_at", "time", "max(r.received_at)", "when the newest of them was received"),
    ]
    body = f"FROM {dialect.view('profile_traits')} AS r\nGROUP BY r.tenant, r.user_id, r.anonymous_id"
    about = "The current traits of each user, and of each visitor"
    return Model("profiles", about, columns, body, _PROFILE, ["profile_traits"])
