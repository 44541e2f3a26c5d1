"""The attribution report: exact sums, and tables, CSV and JSON that callers cannot abuse."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.plugins.attribution.campaigns import DIRECT, TOTAL, Campaign
from ingestd.plugins.attribution.journeys import Candidates
from ingestd.plugins.attribution.marks import DecidedOrder, Order, Refund
from ingestd.plugins.attribution.models import MODELS, Model
from ingestd.plugins.attribution.orders import decide, reverse, supersede
from ingestd.plugins.attribution.people import Whom
from ingestd.plugins.attribution.report import Row, divide, money, number, total
from ingestd.plugins.attribution.touches import Touch
from ingestd.plugins.reports.columns import columns_of
from ingestd.plugins.reports.report import Line, Report
from ingestd.plugins.reports.text import Form, csv_lines, members, table
from ingestd.plugins.sources import Channels
from ingestd.support.terminal import display_width, printable
from tests.support.terminal import HOSTILE

WEEK = 7 * 86_400_000
AT = 1_790_000_000_000
WHOM = Whom("v", None, None)

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "  =1+1", "\t=1+1", "\r=1", "\u00a0=1", "＝1+1", "＋1", "－1", "＠x"]  # noqa: RUF001 - spreadsheets treat these wide characters alike


class Ledger:
    """Orders and refunds in sequence, and their records."""

    def __init__(self, model: Model = "last_touch") -> None:
        self.records: list[dict[str, Any]] = []
        self._model = model
        self._orders: list[Order] = []
        self._marks: list[DecidedOrder] = []

    def order(
        self,
        revenue: float | None,
        *sources: str | None,
        currency: str | None = "EUR",
        total: float | None = None,
        signed: bool = False,
    ) -> int:
        """Add an order with a touch of each source, an hour apart; returns its number."""
        index = len(self._orders)
        completed = Order("shop", f"o-{index}", 100, AT, AT, f"o-{index}", "v", None, revenue, total, currency, signed)
        touches = [
            (
                Touch(
                    n, AT - 3_600_000 * (len(sources) - n), f"t-{index}-{n}", None, source, "m", "n", None, None, "d"
                ),
                "v",
            )
            for n, source in enumerate(sources)
        ]
        record, mark, _ = decide(
            completed, Candidates(touches, [], 0), Channels(()), model=self._model, window=WEEK, half_life=WEEK
        )
        self.records.append(record.decode())
        self._orders.append(completed)
        self._marks.append(mark)
        return index

    def supersede(self, index: int, revenue: float | None, *sources: str) -> int:
        """Add a signed order that supersedes the order `index`; returns its number."""
        signed = self.order(revenue, *sources, signed=True)
        attribution = self.records.pop()
        self.records += [supersede(self._orders[signed], self._marks[index], WHOM).decode(), attribution]
        return signed

    def refund(self, index: int, revenue: float | None = None) -> None:
        cause = f"refund-{len(self.records)}"
        amount = None if revenue is None else Decimal(str(revenue))
        asked = Refund("shop", self._orders[index].order_id, cause, AT, "refund", amount, None, None)
        found = reverse(asked, self._marks[index], WHOM)
        assert found is not None
        self.records.append(found[0].decode())
        self._marks[index] = found[1]

    def rows(self, by: str = "source", model: Model | None = None) -> list[Row]:
        return plain(report(self.records, by, model))


def report(records: Iterable[dict[str, Any]], by: str = "source", model: Model | None = None) -> Report:
    made = Report(columns_of([by]), [model])
    for record in records:
        made.add_derived(record)
    return made


def rows_of(made: Report) -> list[Row]:
    return [line.row for line in made.lines()]


def row(
    campaign: str | Campaign | None, orders: float, revenue: float, taken: float = 0, currency: str | None = "EUR"
) -> Row:
    """A text or None stands for the source of a campaign."""
    there, gone = Decimal(str(revenue)), Decimal(str(taken))
    if not isinstance(campaign, Campaign):
        campaign = Campaign("campaign", (campaign,))
    return plain_row(Row(campaign, currency, Decimal(str(orders)), there, gone, there - gone))


def plain(made: Report) -> list[Row]:
    """Its rows with orders, without customers and assisted orders."""
    return [plain_row(each) for each in rows_of(made) if each.orders]


def plain_row(row: Row) -> Row:
    return Row(*row[:6], exact_orders=row.orders, exact_net=row.net)


def told(rows: Sequence[Row]) -> list[Line]:
    return [Line(0, each) for each in rows]


def as_csv(rows: Sequence[Row], by: str = "source") -> list[list[str]]:
    return read_csv(csv_lines(told(rows), Form(columns_of([by]))))


def as_json(row: Row) -> dict[str, Any]:
    return members(Line(0, row), Form(("source",)))


# Sums


def test_orders_revenue_and_reversals_by_campaign() -> None:
    ledger = Ledger()
    first = ledger.order(100, "google", "facebook")
    ledger.order(50, "facebook")
    ledger.order(20)
    second = ledger.order(30, "google")
    ledger.refund(first, 10)
    ledger.refund(first)
    ledger.refund(second, 10)
    assert ledger.rows() == [
        row("facebook", 2, 150, 100),
        row(DIRECT, 1, 20),
        row("google", 1, 30, 10),
    ]  # fmt: skip
    assert total(ledger.rows()) == row(TOTAL, 4, 200, 110)


def test_groups_by_medium_by_name_and_by_all_fields() -> None:
    ledger = Ledger()
    ledger.order(100, "google")
    for record in ledger.records:
        record["touchpoints"][0].update(medium="cpc", name="spring")
    assert ledger.rows("medium") == [row("cpc", 1, 100)]
    assert ledger.rows("name") == [row("spring", 1, 100)]
    (by_all,) = ledger.rows("campaign")
    assert by_all == row(Campaign("campaign", ("google", "cpc", "spring")), 1, 100)
    assert by_all.campaign.label == "google / cpc / spring"
    for record in ledger.records:
        record["touchpoints"][0].update(source=None, name="")
    assert ledger.rows("campaign") == [row(Campaign("campaign", (None, "cpc", None)), 1, 100)]


def test_campaigns_are_told_apart_by_their_fields() -> None:
    """Not by one text of them. Nor is a source of that name a direct order."""
    campaigns: list[tuple[str | None, ...]] = [
        ("newsletter", "email", None), ("newsletter", None, "email"), ("a / b", None, "c"), ("a", "b", "c"),
        ("(direct)", None, None), ("(others)", None, None), (None, None, None), ('"(direct)"', None, None),
        ("a / b", "c", None), ("a", "b / c", None), ('"a / b"', "c", None), ('a" / "b', None, None), ("a", None, "c"),
        ("a", "\N{EN DASH}", "c"), ("a /", "b", None), ("a", "/ b", None),
    ]  # fmt: skip
    ledger = Ledger()
    for campaign in campaigns:
        ledger.order(10, "x")
        ledger.records[-1]["touchpoints"][0].update(dict(zip(("source", "medium", "name"), campaign, strict=True)))
    ledger.order(10)
    rows = ledger.rows("campaign")
    assert {each.campaign for each in rows} == {DIRECT, *(Campaign("campaign", each) for each in campaigns)}
    assert len({each.campaign.label for each in rows}) == len(campaigns) + 1
    lines = as_csv(rows, "campaign")
    assert lines[0][:9] == ["source", "medium", "name", "currency", "orders", "revenue", "reversed", "net", "kind"]
    found = {(*line[:3], line[8]) for line in lines[1:]}
    expected = {(*(field or "" for field in each), "campaign") for each in campaigns}
    assert found == {("(direct)", "", "", "direct"), *expected}


def test_a_touch_without_the_field_is_not_set_and_no_touch_is_direct() -> None:
    ledger = Ledger()
    ledger.order(100, None)
    ledger.order(10)
    assert ledger.rows() == [row(None, 1, 100), row(DIRECT, 1, 10)]


@pytest.mark.parametrize(
    ("model", "shares"),
    [
        (None, {"a": 100}),
        ("last_touch", {"a": 100}),
        ("first_touch", {"a": 100}),
        ("linear", {"a": 50, "b": 25, "c": 25}),
        ("position_based", {"a": 80, "b": 10, "c": 10}),
    ],
)
def test_by_model(model: Model | None, shares: dict[str, int]) -> None:
    ledger = Ledger()
    ledger.refund(ledger.order(100, "a", "b", "c", "a"), 10)
    assert ledger.rows(model=model) == [
        row(name, share / 100, share, share / 10) for name, share in shares.items()
    ]  # fmt: skip


def test_by_default_each_attribution_has_its_own_model() -> None:
    first, last = Ledger("first_touch"), Ledger("last_touch")
    first.order(100, "a", "b")
    last.order(10, "a", "b")
    last.records[0]["id"] = "another"
    assert plain(report([*first.records, *last.records])) == [row("a", 1, 100), row("b", 1, 10)]


def test_a_repeated_record_counts_once() -> None:
    ledger = Ledger()
    ledger.refund(ledger.order(100, "google"), 10)
    assert plain(report([*ledger.records, *ledger.records, *ledger.records])) == [row("google", 1, 100, 10)]


def test_a_reversal_counts_only_beside_its_attribution() -> None:
    ledger = Ledger()
    ledger.refund(ledger.order(100, "google"), 10)
    assert rows_of(report(ledger.records[1:])) == []


def test_rows_that_differ_in_case_are_one_as_most_orders_write_it() -> None:
    ledger = Ledger("linear")
    for source in ("Google", "google", "GOOGLE", "Google", "STRASSE", "straße"):
        ledger.order(10, source, currency="CHF" if source == "GOOGLE" else "EUR")
    ledger.order(10, "bing", "Bing")
    assert ledger.rows() == [
        row("Google", 1, 10, currency="CHF"), row("Google", 3, 30), row("Bing", 1, 10), row("STRASSE", 1, 10),
        row("straße", 1, 10),
    ]  # fmt: skip
    apart = Report(columns_of(["source"]), keep_case=True)
    for record in ledger.records:
        apart.add_derived(record)
    found = {each.campaign.label: each.orders for each in rows_of(apart)}
    assert found == {"Google": 2, "google": 1, "GOOGLE": 1, "STRASSE": 1, "straße": 1, "bing": 0.5, "Bing": 0.5}


def test_touchpoints_without_credit_assist_once_an_order() -> None:
    ledger = Ledger()
    ledger.order(10, "mail", "Mail", "google", "google")
    ledger.order(10, "Google", "mail", "google")
    ledger.order(10, "google")
    made = report(ledger.records)
    found = {each.campaign.label: [float(each.orders), each.assisted] for each in rows_of(made)}
    assert found == {"google": [3, 0], "Mail": [0, 2]}
    by_linear = report(ledger.records, model="linear")
    assert {each.assisted for each in rows_of(by_linear)} == {0}


def test_paths_are_sequences_before_orders() -> None:
    def paths(*sources: str, left_out: int = 0) -> str:
        ledger = Ledger()
        ledger.order(10, *sources)
        ledger.records[0]["leftOut"] = left_out
        made = Report(columns_of(["source"]), paths=True)
        made.add_derived(ledger.records[0])
        (found,) = rows_of(made)
        assert [float(found.orders), found.sessions, found.assisted] == [1, None, None]
        return found.campaign.label

    assert paths() == "(direct)"
    assert paths("mail", "mail", "Mail", "google", "mail") == "mail > google > mail"
    assert paths("a", "b", left_out=7) == "a > … > b"
    assert paths(*"abcdefghij") == " > ".join("abcdefghij")
    assert paths(*"abcdefghijk") == "a > … > d > e > f > g > h > i > j > k"
    assert paths("(direct)") == '"(direct)"'


def test_currencies_stay_apart() -> None:
    ledger = Ledger()
    for currency, revenue in (("USD", 5), ("EUR", 3), (None, 1), ("EUR", 4), ("CZK", 2)):
        ledger.refund(ledger.order(revenue, "google", currency=currency), 1)
    assert ledger.rows() == [
        row("google", 1, 1, 1, None), row("google", 1, 2, 1, "CZK"), row("google", 2, 7, 2),
        row("google", 1, 5, 1, "USD"),
    ]  # fmt: skip


def test_case_and_blanks_of_a_currency_do_not_matter() -> None:
    ledger = Ledger()
    for currency, revenue in (("EUR", 1), ("eur", 2), (" Eur\n", 4), ("\u00a0EUR", 8), (None, 1), ("", 2), (" ", 4)):
        ledger.refund(ledger.order(revenue, "google", currency=currency), 1)
    assert ledger.rows() == [row("google", 3, 7, 3, None), row("google", 4, 15, 4, "EUR")]


def test_the_revenue_of_an_order_is_its_revenue_or_else_its_total() -> None:
    ledger = Ledger()
    ledger.order(0, "a", total=50)
    ledger.order(None, "b", total=50)
    ledger.refund(ledger.order(None, "c"))
    assert ledger.rows() == [row("b", 1, 50), row("a", 1, 0), row("c", 1, 0)]


def test_rows_are_sorted_by_net_revenue_then_orders_then_name() -> None:
    ledger = Ledger()
    for source in ("d", "b", "c", "c"):
        ledger.order(0, source)
    ledger.refund(ledger.order(100, "refunded"))
    ledger.order(1, "a")
    ledger.order(50, "cut")
    ledger.records[-1]["touchpoints"] = [{"eventId": each["eventId"]} for each in ledger.records[-1]["touchpoints"]]
    ledger.records[-1]["touchpoint"] = {"eventId": "another"}
    assert [each.campaign.label for each in ledger.rows()] == ["a", "c", "b", "d", "refunded", "(others)"]


MONEY = st.integers(-(10**10), 10**10).map(lambda cents: cents / 100)
LEDGERS = st.lists(
    st.tuples(st.none() | MONEY, st.lists(st.sampled_from(["a", "b", "c", None]), max_size=9), st.none() | MONEY),
    max_size=12,
)


@example(
    [(99999992.42, ["a"], None), (99999992.42, [*"aaaaabc", None, None], None)], "position_based", "source"
)  # 29 digits
@given(LEDGERS, st.sampled_from([*MODELS, None]), st.sampled_from(["source", "medium"]))
def test_rows_in_cents_sum_to_the_orders_exactly(orders: list[Any], model: Model | None, by: str) -> None:
    ledger = Ledger("linear")
    revenue, taken = Decimal(0), Decimal(0)
    for worth, sources, refunded in orders:
        index = ledger.order(worth, *sources)
        revenue += Decimal(str(worth or 0))
        if refunded:
            ledger.refund(index, refunded)
            part = ledger.records[-1]["value"]["revenue"] if worth is not None else None
            taken += Decimal(str(part or 0))
    rows = ledger.rows(by, model)
    if rows:
        assert total(rows)[:6] == (TOTAL, "EUR", Decimal(len(orders)), revenue, taken, revenue - taken)
        assert all(each.net == each.revenue - each.reversed for each in rows)
        assert all(amount == round(amount, 2) for each in rows for amount in each[2:6])
        assert len({each.campaign for each in rows}) == len(rows)
    else:
        assert not orders


def test_a_cent_that_cannot_be_divided_counts_once() -> None:
    ledger = Ledger("linear")
    ledger.refund(ledger.order(100, "a", "b", "c"), 10)
    assert ledger.rows() == [
        row("a", 0.34, 33.34, 3.34), row("b", 0.33, 33.33, 3.33), row("c", 0.33, 33.33, 3.33),
    ]  # fmt: skip


@given(st.decimals(-(10**300), 10**300, allow_nan=False), st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_parts_sum_to_the_whole_exactly(amount: Decimal, shares: list[float]) -> None:
    parts = divide(amount, [Decimal(str(share)) for share in shares])
    assert len(parts) == len(shares)
    assert sum(map(Fraction, parts), Fraction(0)) == Fraction(amount)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("0", "0"), ("40.00", "40"), ("-3", "-3"), ("0.1", "0.1"), ("1E+2", "100"),
     ("25.479999999999997", "25.48"), ("0.005", "0"), ("-0.004", "0"),
     ("9007199254740993.5", "9007199254740993")],
)  # fmt: skip
def test_numbers_in_json(amount: str, shown: str) -> None:
    assert json.dumps(number(Decimal(amount))) == shown


def test_absurd_amounts_do_not_affect_the_rest() -> None:
    """An earlier version wrote such amounts into the values of records. This version does not."""
    ledger = Ledger()
    ledger.order(1.7e308, "a")
    ledger.order(None, "a")
    ledger.records[-1]["notCounted"] = ["revenue"]
    ledger.order(5e-324, "b")
    made = report(ledger.records)
    a, b = map(as_json, rows_of(made))
    assert (a["orders"], a["net"]) == (2, 0)
    assert b["net"] == 0
    assert made.not_counted == 2


def test_the_average_of_a_small_share_is_that_of_the_order() -> None:
    ledger = Ledger("linear")
    ledger.order(100, *map(str, range(200)))
    ledger.order(1000, "a", "b", "c")
    averages = {row["source"]: row["average"] for row in map(as_json, rows_of(report(ledger.records)))}
    assert averages == {**dict.fromkeys(map(str, range(200)), 100), **dict.fromkeys("abc", 1000)}


def test_an_order_that_was_superseded_does_not_count() -> None:
    ledger = Ledger("linear")
    public = ledger.order(100, "thief", "shared")
    ledger.refund(public, 30)
    ledger.order(7, "shared")
    signed = ledger.supersede(public, 40, "shop", "shared")
    ledger.refund(signed, 10)
    assert lines_of(ledger.rows()) == [
        "source  orders  revenue  reversed    net  average  EUR",
        "shared    1.50    27.00      5.00  22.00    14.67  ████████████████████████",
        "shop      0.50    20.00      5.00  15.00    30.00  ████████████████",
        "total     2.00    47.00     10.00  37.00    18.50",
    ]


# Text


def lines_of(rows: Sequence[Row], width: int = 80, by: str = "source") -> list[str]:
    return [*table(told(rows), Form(columns_of([by])), width)]


def test_the_table() -> None:
    ledger = Ledger("linear")
    first = ledger.order(1000, "google", "newsletter")
    ledger.order(500.5, "google")
    ledger.order(12, currency="USD")
    ledger.refund(first, 100)
    assert lines_of(ledger.rows()) == [
        "source      orders  revenue  reversed      net  average  EUR",
        "google        1.50  1000.50     50.00   950.50   633.67  ███████████████████████",
        "newsletter    0.50   500.00     50.00   450.00   900.00  ███████████",
        "total         2.00  1500.50    100.00  1400.50   700.25",
        "",
        "source      orders  revenue  reversed      net  average  USD",
        "(direct)      1.00    12.00      0.00    12.00    12.00  ███████████████████████",
        "total         1.00    12.00      0.00    12.00    12.00",
    ]


def test_bars_show_net_revenue_or_else_orders() -> None:
    bars = [line.count("█") for line in lines_of([row("a", 1, 100), row("b", 9, 60, 10), row("c", 1, 5, 9)])]
    assert bars == [0, 24, 12, 0, 0]
    bars = [line.count("█") for line in lines_of([row("a", 4, 0), row("b", 1, 0)])]
    assert bars == [0, 24, 6, 0]
    refunded = [line.count("█") for line in lines_of([row("a", 4, 10, 10)])]
    assert refunded == [0, 0, 0]


def test_orders_are_whole_unless_shares_are_not() -> None:
    assert re.search(r"^a +1  ", lines_of([row("a", 1, 100)])[1])
    assert re.search(r"^a +1\.00  ", lines_of([row("a", 1, 100), row("b", 0.5, 1)])[1])


NAMES = st.text(max_size=60) | st.sampled_from([*HOSTILE, "東京セール" * 5, "e\u0301" * 20, "👨‍👩‍👧" * 9, "x" * 10_000])
ROWS = st.lists(
    st.builds(
        row, NAMES, st.integers(0, 10**6) | st.sampled_from([0.25]), st.integers(-(10**15), 10**15),
        st.integers(0, 10**6), st.sampled_from(["EUR", None, *HOSTILE[:3], "円", "x" * 500]),
    ),
    min_size=1, max_size=6,
).map(lambda rows: sorted(rows, key=lambda each: each.currency or ""))  # fmt: skip


@given(ROWS, st.integers(40, 200))
def test_a_table_fits_its_width_and_steers_no_terminal(rows: list[Row], width: int) -> None:
    lines = lines_of(rows, width)
    assert all(display_width(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
    assert len(lines) == len(rows) + 3 * len({each.currency for each in rows}) - 1


@pytest.mark.parametrize("width", [1, 20, 39])
def test_a_very_narrow_terminal_still_gets_a_table(width: int) -> None:
    lines = lines_of([row("a campaign with a name", 1, 100), row("b", 1, 1)], width)
    assert [line.split()[0] for line in lines] == ["source", "a", "b", "total"]
    assert max(map(len, lines)) <= 39


def test_wide_names_are_aligned() -> None:
    rows = [row("東京", 1, 100), row("abcd", 1, 50), row("e\u0301te\u0301", 1, 25), row("𠮷", 1, 10)]
    # The column of the decimal point in the terminal.
    places = {display_width(line.partition(".")[0]) for line in lines_of(rows)[1:]}
    assert len(places) == 1


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("0", "0.00"), ("-0.001", "0.00"), ("1234.5", "1234.50"), ("-0.1", "-0.10"), ("0.125", "0.12"),
     ("1E+20", "1.00e+20")],
)  # fmt: skip
def test_money(amount: str, shown: str) -> None:
    assert money(Decimal(amount)) == shown


# CSV and JSON


def read_csv(lines: Iterable[str]) -> list[list[str]]:
    return [*csv.reader([f"{line}\r\n" for line in lines], strict=True)]


def test_csv_is_read_back() -> None:
    rows = [row('a "quoted", one', 1.5, 100.25, 1), row("b", 1, 0, 0, None)]
    header = (
        "source,currency,orders,revenue,reversed,net,kind,sessions,visitors,average,conversion,new,returning,assisted"
        ",cost,clicks,impressions,roas,cost_per_order"
    )
    assert [*csv_lines(told(rows), Form(("source",)))] == [
        header,
        '"a ""quoted"", one",EUR,1.5,100.25,1,99.25,campaign,,,66.17,,,,,,,,,',
        "b,,1,0,0,0,campaign,,,0,,,,,,,,,",
    ]
    assert as_csv(rows)[1][:7] == [
        'a "quoted", one',
        "EUR",
        "1.5",
        "100.25",
        "1",
        "99.25",
        "campaign",
    ]
    assert [*csv_lines([], Form(("source",)))] == [header]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text: str) -> None:
    [_, cells] = as_csv([row(text, 1, 1, currency=text)])
    assert len(cells) == 19
    for cell in cells[:2]:
        assert cell[0] in {"'", "\N{REPLACEMENT CHARACTER}"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("東京\u3000セール", "東京\u3000セール"), ("क\u094d\u200dष", "क\u094d\u200dष"), ("a\u00a0b", "a\u00a0b"),
        ("a\x1b[31m\u202e\u2028\n\x85b", "a\ufffd[31m\ufffd\ufffd\ufffd\ufffdb"), ("\u200d=1+1", "'\u200d=1+1"),
    ],
)  # fmt: skip
def test_csv_keeps_blanks_and_joiners_of_scripts_but_no_controls(text: str, shown: str) -> None:
    [_, cells] = as_csv([row(text, 1, 1)])
    assert cells[0] == shown


@given(ROWS)
def test_csv_has_a_line_and_all_cells_a_row_for_any_names(rows: list[Row]) -> None:
    cells = as_csv(rows)
    assert [len(each) for each in cells] == [19] * (1 + len(rows))
    assert [printable(each[0]).removeprefix("'") for each in cells[1:]] == [
        printable(each.campaign.fields[0] or "").removeprefix("'") for each in rows
    ]
    assert [Decimal(each[3]) for each in cells[1:]] == [each.revenue for each in rows]


@given(ROWS)
def test_json_has_the_members_of_each_row_for_any_names(rows: list[Row]) -> None:
    assert [dict([*json.loads(json.dumps(as_json(row))).items()][:7]) for row in rows] == [
        {
            "source": each.campaign.fields[0], "currency": each.currency, "orders": float(each.orders),
            "revenue": float(each.revenue), "reversed": float(each.reversed), "net": float(each.net),
            "kind": "campaign",
        }
        for each in rows
    ]  # fmt: skip
