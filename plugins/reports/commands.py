"""The commands `ingestd attribution report` and `ingestd costs`. Their modules are imported when they run."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from ingestd.api.hookspecs import Commands, Daemon
from ingestd.support.names import hint

from ..attribution.models import MODELS
from .periods import EVERY, TimeZone, instant
from .reading import ReportRules

__all__ = ["register"]

_BY = (
    "channel", "source", "medium", "campaign", "name", "term", "content", "landing", "product", "model",
)  # fmt: skip
_COLUMNS = "day, source, medium, campaign, currency, cost, clicks, impressions"
_COSTS = {
    "import": (
        f"store the costs of a CSV file with the columns {_COLUMNS}",
        ["ingestd costs import november.csv --dry-run", "ingestd costs import november.csv --tenant shop"],
    ),
    "list": ("show the stored costs", ["ingestd costs list --since 2026-11-01"]),
    "remove": (
        "remove all costs of some days",
        ["ingestd costs remove --since 2026-11-01 --until 2026-11-30 --dry-run"],
    ),
}


def register(commands: Commands, rules: ReportRules) -> None:
    _add_report(commands, rules)
    commands.describe("costs", "import, list and remove the costs of campaigns")
    for name in _COSTS:
        _add_costs(commands, name, rules)


def _add_report(commands: Commands, rules: ReportRules) -> None:
    async def run(arguments: Namespace, daemon: Daemon) -> None:
        from .report_command import report

        await report(arguments, daemon, rules)

    parser = commands.add(
        "attribution",
        "report",
        run,
        help="show orders, revenue and sessions by channel, source, campaign, page or product",
        examples=[
            "ingestd attribution report --since 30d --by source",
            "ingestd attribution report --since 2026-11-01 --until 2026-11-30 --by channel,campaign --compare",
            "ingestd attribution report --since 7d --model linear --tenant shop --csv",
        ],
    )
    add = parser.add_argument
    add("--since", required=True, type=instant, metavar="TIME", help="a date, a time, or an age such as 30d")
    add("--until", type=instant, metavar="TIME", help="the end: a date, which is included, or a time, which is not")
    add(
        "--by", type=_by, metavar="COLUMNS",
        help=f"the columns to group by, such as channel,source: {', '.join(_BY)}; campaign alone is source, medium and"
        " name; model shows all models beside each other; default: source",
    )  # fmt: skip
    add("--every", choices=EVERY, help="a row for each day, week or month")
    compared = "compare with the time before: of the same length, or a month with the month before"
    add("--compare", action="store_true", help=compared)
    add("--paths", action="store_true", help="show the sequences of touchpoints before orders, by default of channels")
    added_up = "the model whose credits are added up; default: the model of each attribution"
    add("--model", choices=MODELS, help=added_up)
    add("--tenant", metavar="TENANT", help="only this shop")
    zone = "the time zone of dates, days, weeks and months; default: plugins.attribution.time_zone"
    add("--time-zone", type=_time_zone, default=rules.time_zone, metavar="ZONE", help=zone)
    add("--keep-case", action="store_true", help="keep rows apart that differ only in case")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object a line")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")


def _by(text: str) -> Sequence[str]:
    names = [each.strip() for each in text.split(",")]
    for name in names:
        if name not in _BY:
            raise ArgumentTypeError(f"there is no column {name!r}; {hint(name, _BY)}")
    return names


def _time_zone(text: str) -> TimeZone:
    try:
        return TimeZone.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _add_costs(commands: Commands, name: str, rules: ReportRules) -> None:
    async def run(arguments: Namespace, daemon: Daemon) -> None:
        from .cost_commands import COMMANDS

        await COMMANDS[name](arguments, daemon, rules)

    help_, examples = _COSTS[name]
    json = "print one JSON object a line" if name == "list" else "print one JSON object"
    parser = commands.add("costs", name, run, help=help_, examples=examples, json=json)
    tenant = "only this shop" if name == "list" else "the shop; needed if there are several"
    parser.add_argument("--tenant", metavar="TENANT", help=tenant)
    if name == "import":
        parser.add_argument("file", metavar="FILE", type=Path, help="the file, in UTF-8, with a header")
        parser.add_argument("--dry-run", action="store_true", help="check the file and show what would change")
        return
    for option, help_ in (("--since", "the first day, as 2026-11-01"), ("--until", "the last day")):
        parser.add_argument(option, required=name == "remove", type=_day, metavar="DAY", help=help_)
    if name == "remove":
        parser.add_argument("--dry-run", action="store_true", help="show what would change")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError("expected a date such as 2026-11-01") from None
