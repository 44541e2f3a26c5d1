"""The models of orders: attributions with their touchpoints and shares, reversals, and revenue by campaign and day.

Amounts and shares are those of `ingestd attribution report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .dialects import Dialect
from .model import Column, Model

__all__ = ["NAMES", "order_models"]

NAMES = (
    "reversals", "attributions", "attribution_touchpoints", "orders", "attribution_credits",
    "net_revenue_by_campaign_day",
)  # fmt: skip
"""In this order each reads only models before it."""

_TEXTS = (
    ("kind", "`campaign`, `click`, `dispatch` or `referrer`"),
    ("channel", "the channel"),
    ("source", "the source"),
    ("medium", "the medium"),
    ("name", "the campaign's name"),
    ("term", "the term"),
    ("content", "the content"),
)
_CAMPAIGN = ("kind", "channel", "source", "medium", "name")


def order_models(dialect: Dialect) -> Iterator[Model]:
    yield _reversals(dialect)
    yield _attributions(dialect)
    yield _touchpoints(dialect)
    yield _orders(dialect)
    yield _credits(dialect)
    yield _by_campaign_and_day(dialect)


def _head(dialect: Dialect, at: str) -> list[Column]:
    return [
        Column("tenant", "text", "r.tenant", "the shop"),
        Column("order_id", "text", dialect.text("r.record", "orderId"), "the order's id, if it has one"),
        Column("order_event_id", "text", dialect.text("r.record", "orderEventId"), "event id of the order"),
        Column("order_at", "time", "r.event_at", "time of the order"),
        Column("received_at", "time", "r.received_at", at),
        Column("received_on", "day", dialect.day("r.received_at"), "its day, in UTC"),
        Column("anonymous_id", "text", "r.anonymous_id", "the visitor"),
        Column("user_id", "text", "r.user_id", "the user, if known"),
        Column("model", "text", dialect.text("r.record", "model"), "the model that gives the credit"),
    ]


def _amounts(dialect: Dialect) -> list[Column]:
    """Amounts over 10^12 do not count. Records of early versions may have them."""
    amounts = {}
    for name in ("revenue", "total"):
        amount = dialect.decimal(dialect.path("r.record", "value", name))
        amounts[name] = f"CASE WHEN abs({amount}) <= 1000000000000 THEN {amount} END"
    currency = dialect.text("r.record", "value", "currency")
    return [
        Column("revenue", "decimal", amounts["revenue"], "`revenue`, if it has one"),
        Column("total", "decimal", amounts["total"], "`total`, if it has one"),
        Column(
            "value", "decimal", f"coalesce({amounts['revenue']}, {amounts['total']})", "the revenue, or else the total"
        ),
        Column("currency", "text", f"nullif(upper(trim({currency})), '')", "trimmed and in capitals"),
    ]


def _campaign(dialect: Dialect, touchpoint: str) -> list[Column]:
    return [
        Column(name, "text", dialect.text(touchpoint, name), f"{about} of the touchpoint with the credit")
        for name, about in _TEXTS
    ]


def _reversals(dialect: Dialect) -> Model:
    record = "r.record"
    columns = [
        Column("reversal_id", "text", "r.id", "id of the record"),
        Column("attribution_id", "text", dialect.text(record, "attributionId"), "what it reverses"),
        *_head(dialect, "receipt of the refund, or of the order if that came later"),
        Column("reason", "text", dialect.text(record, "reason"), "`refund`, `cancel` or `superseded`"),
        Column("cause_event_id", "text", dialect.text(record, "cause"), "event id of the refund"),
        *_amounts(dialect),
        *_campaign(dialect, dialect.member(record, "touchpoint")),
    ]
    return Model(
        "reversals", "What refunds and cancellations took back, and orders that signed ones superseded",
        columns, f"FROM {dialect.records('attribution_reversal')} AS r", ["reversal_id"],
    )  # fmt: skip


def _attributions(dialect: Dialect) -> Model:
    record = "r.record"
    touchpoint = dialect.member(record, "touchpoint")
    superseded = f"r.id IN (SELECT attribution_id FROM {dialect.view('reversals')} WHERE reason = 'superseded')"
    columns = [
        Column("attribution_id", "text", "r.id", "id of the record"),
        *_head(dialect, "receipt of the order"),
        *_amounts(dialect),
        *_campaign(dialect, touchpoint),
        Column("touchpoint_event_id", "text", dialect.text(touchpoint, "eventId"), "its event id"),
        Column("touchpoint_at", "time", dialect.time(dialect.member(touchpoint, "at")), "its time"),
        Column(
            "touchpoint_count", "integer",
            dialect.cast(dialect.length(dialect.member(record, "touchpoints")), "integer"), "touchpoints of the order",
        ),
        Column("is_superseded", "boolean", dialect.cast(superseded, "boolean"), "a signed order took its place"),
        Column("touchpoint", "json", touchpoint, "the touchpoint with the credit, as recorded"),
        Column("touchpoints", "json", dialect.member(record, "touchpoints"), "all, as recorded"),
        Column("credits", "json", dialect.member(record, "credits"), "the shares by model, as recorded"),
    ]  # fmt: skip
    return Model(
        "attributions", "Each decided order with the touchpoint that has the credit, superseded ones too",
        columns, f"FROM {dialect.records('attribution')} AS r", ["attribution_id"], ["reversals"],
    )  # fmt: skip


def _touchpoints(dialect: Dialect) -> Model:
    texts = {name: dialect.text("t.texts", name) for name in (*dict(_TEXTS), "dispatchId")}
    event_id = dialect.text("r.item", "eventId")
    same = dialect.decimal(dialect.member("r.item", "sameAs"))
    # Large records have short forms: `sameAs`, or the event id alone, whose texts the credited touchpoint may have.
    known = [dialect.text("r.item", name) for name in texts]
    credited = f"coalesce({', '.join(known)}) IS NULL AND r.touchpoint_event_id = {event_id}"
    short = (
        f"CASE WHEN {same} IS NOT NULL THEN {dialect.element('r.touchpoints', same)}"
        f" WHEN {credited} THEN r.touchpoint ELSE r.item END"
    )
    rows = dialect.rows(dialect.view("attributions"), "touchpoints")
    is_known = f"coalesce({', '.join(texts.values())}) IS NOT NULL"
    of_texts = [Column(name, "text", texts[name], about) for name, about in _TEXTS[1:]]
    columns = [
        Column("attribution_id", "text", "t.attribution_id", "the order's attribution"),
        Column("number", "integer", dialect.cast("t.number", "integer"), "from 1, oldest first"),
        Column("tenant", "text", "t.tenant", "the shop"),
        Column("event_id", "text", dialect.text("t.item", "eventId"), "event id of the touchpoint"),
        Column("at", "time", dialect.time(dialect.member("t.item", "at")), "its time"),
        Column("anonymous_id", "text", dialect.text("t.item", "anonymousId"), "its visitor"),
        Column("session_id", "text", dialect.text("t.item", "sessionId"), "its session"),
        Column(
            "kind", "text", f"CASE WHEN {is_known} THEN {texts['kind']} ELSE 'others' END",
            f"{_TEXTS[0][1]}; `others` if the record had no room for the campaign",
        ),
        *of_texts,
        Column("dispatch_id", "text", texts["dispatchId"], "the send"),
        Column("click_type", "text", dialect.text("t.texts", "clickId", "type"), "such as `gclid`"),
        Column("click_id", "text", dialect.text("t.texts", "clickId", "id"), "the click"),
    ]  # fmt: skip
    body = f"FROM (SELECT r.*, {short} AS texts FROM {rows} AS r) AS t"
    return Model(
        "attribution_touchpoints", "The touchpoints before each order", columns, body,
        ["attribution_id", "number"], ["attributions"],
    )  # fmt: skip


_ORDER = ("tenant", "order_id", "order_event_id", "order_at", "received_at", "received_on", "anonymous_id", "user_id")


def _copied(columns: Sequence[Column], table: str, names: Sequence[str]) -> list[Column]:
    by_name = {each.name: each for each in columns}
    return [by_name[name]._replace(sql=f"{table}.{name}") for name in names]


def _orders(dialect: Dialect) -> Model:
    attributions = _attributions(dialect).columns

    def first(person: str) -> str:
        return (
            f"(a.{person} IS NULL OR row_number() OVER"
            f" (PARTITION BY a.tenant, a.{person} ORDER BY a.order_at, a.attribution_id) = 1)"
        )

    is_first = f"{first('user_id')} AND {first('anonymous_id')}"
    known = "coalesce(a.user_id, a.anonymous_id) IS NOT NULL"
    zero = dialect.cast("0", "decimal")
    reversed_ = f"coalesce(v.reversed, {zero})"
    columns = [
        Column("attribution_id", "text", "a.attribution_id", "id of its attribution"),
        *_copied(attributions, "a", [*_ORDER, "currency", "revenue", "total"]),
        Column("value", "decimal", f"coalesce(a.value, {zero})", "the revenue, or else the total, or else 0"),
        Column("reversed", "decimal", reversed_, "what refunds and cancellations took back"),
        Column("net", "decimal", f"coalesce(a.value, {zero}) - {reversed_}", "`value` less `reversed`"),
        Column(
            "is_first", "boolean", f"CASE WHEN {known} THEN {dialect.cast(is_first, 'boolean')} END",
            "no earlier order has its user or its visitor; null if it has neither",
        ),
        *_copied(attributions, "a", ["model", *_CAMPAIGN, "touchpoint_count"]),
    ]  # fmt: skip
    sums = (
        f"SELECT attribution_id, sum(value) AS reversed FROM {dialect.view('reversals')}"
        " WHERE reason <> 'superseded' GROUP BY attribution_id"
    )
    body = (
        f"FROM {dialect.view('attributions')} AS a\n"
        f"LEFT JOIN ({sums}) AS v ON v.attribution_id = a.attribution_id\nWHERE NOT a.is_superseded"
    )
    return Model(
        "orders", "Each order once, with what is left of it", columns, body,
        ["attribution_id"], ["attributions", "reversals"],
    )  # fmt: skip


def _credits(dialect: Dialect) -> Model:
    orders = _orders(dialect).columns
    # An order without touchpoints has an empty list for each model: it is direct, with one share.
    shares = f"CASE WHEN {dialect.is_empty('item')} THEN {dialect.array('[{}]')} ELSE item END"
    recorded = f"(SELECT attribution_id, credits FROM {dialect.view('attributions')})"
    models = (
        f"(SELECT attribution_id, name AS model, {shares} AS shares FROM {dialect.entries(recorded, 'credits')} AS m)"
    )
    weight = f"coalesce({dialect.decimal(dialect.member('item', 'weight'))}, {dialect.cast('1', 'decimal')})"
    parts = (
        f"SELECT attribution_id, model, number, {dialect.text('item', 'eventId')} AS event_id,"
        f" {weight} AS weight FROM {dialect.rows(models, 'shares')} AS c"
    )
    part = {
        name: dialect.cast(dialect.share(amount, "c.weight"), "decimal")
        for name, amount in (("value", "o.value"), ("reversed", "o.reversed"))
    }
    inner = (
        "SELECT c.attribution_id AS attribution_id, c.model AS model, c.number AS number, c.event_id AS event_id,"
        f" c.weight AS weight, {part['value']} AS value_part, {part['reversed']} AS reversed_part,"
        " row_number() OVER (PARTITION BY c.attribution_id, c.model ORDER BY c.number DESC) AS place,"
        " o.value AS order_value, o.reversed AS order_reversed, o.model AS order_model, "
        + ", ".join(f"o.{name} AS {name}" for name in (*_ORDER, "currency"))
        + f" FROM {dialect.view('orders')} AS o JOIN ({parts}) AS c ON c.attribution_id = o.attribution_id"
    )

    def exact(whole: str, part: str) -> str:
        """The last share is the rest, so that the shares of an order add up to it."""
        others = f"sum({part}) OVER (PARTITION BY s.attribution_id, s.model) - {part}"
        return dialect.cast(f"CASE WHEN s.place = 1 THEN {whole} - ({others}) ELSE {part} END", "decimal")

    revenue, reversed_ = exact("s.order_value", "s.value_part"), exact("s.order_reversed", "s.reversed_part")
    is_credited = dialect.cast("s.model = s.order_model", "boolean")
    direct, one = "s.event_id IS NULL", dialect.cast("1", "decimal")
    columns = [
        Column("attribution_id", "text", "s.attribution_id", "the order's attribution"),
        Column("model", "text", "s.model", "`last_touch`, `first_touch`, `linear`, `position_based` or `time_decay`"),
        Column("number", "integer", dialect.cast("s.number", "integer"), "place among the shares of the model, from 1"),
        Column("is_credited", "boolean", is_credited, "whether the order counts by this model"),
        *_copied(orders, "s", [*_ORDER, "currency"]),
        Column("touchpoint_event_id", "text", "s.event_id", "event id of the touchpoint; null for a direct order"),
        Column("kind", "text", f"CASE WHEN {direct} THEN 'direct' ELSE t.kind END",
               "that of the touchpoint; `direct` for an order without touchpoints"),
        Column("channel", "text", f"CASE WHEN {direct} THEN 'Direct' ELSE t.channel END", "the channel"),
        *[Column(name, "text", f"t.{name}", about) for name, about in _TEXTS[2:5]],
        Column("weight", "decimal", "s.weight", "the share, as recorded"),
        Column("orders", "decimal", exact(one, "s.weight"), "the same, but the last is the rest"),
        Column("revenue", "decimal", revenue, "share of the order's `value`, to nine decimals; the last is the rest"),
        Column("reversed", "decimal", reversed_, "share of what was taken back"),
        Column("net", "decimal", f"{revenue} - {reversed_}", "`revenue` less `reversed`"),
    ]  # fmt: skip
    body = (
        f"FROM ({inner}) AS s\nLEFT JOIN {dialect.view('attribution_touchpoints')} AS t"
        " ON t.attribution_id = s.attribution_id AND t.event_id = s.event_id"
    )
    return Model(
        "attribution_credits", "The share of each touchpoint in each order, by each model", columns, body,
        ["attribution_id", "model", "number"], ["orders", "attribution_touchpoints"],
    )  # fmt: skip


def _by_campaign_and_day(dialect: Dialect) -> Model:
    shares = _credits(dialect).columns
    names = ("tenant", "received_on", "model", "is_credited", "currency", *_CAMPAIGN)
    columns = [each for each in _copied(shares, "c", names) if each.name != "received_on"]
    columns.insert(1, Column("day", "day", "c.received_on", "day of the orders' receipt, in UTC"))
    columns += [
        Column("orders", "decimal", "sum(c.orders)", "orders, or shares of them"),
        Column("revenue", "decimal", "sum(c.revenue)", "what they were worth"),
        Column("reversed", "decimal", "sum(c.reversed)", "what was taken back of them until now"),
        Column("net", "decimal", "sum(c.revenue) - sum(c.reversed)", "`revenue` less `reversed`"),
    ]
    grouped = ", ".join(f"c.{name}" for name in names)
    body = f"FROM {dialect.view('attribution_credits')} AS c\nGROUP BY {grouped}"
    return Model(
        "net_revenue_by_campaign_day", "Orders and revenue of each campaign, by the day of the order", columns, body,
        [each.name for each in columns[:-4]], ["attribution_credits"],
    )  # fmt: skip
