"""The commands `ingestd attribution report` and `ingestd costs`. Their modules are imported when they run."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from ingestd.api.hookspecs import Commands, Daemon, Run
from ingestd.support.names import hint

from ..attribution.models import MODELS
from .periods import EVERY, TimeZone, instant
from .rules import ReportRules

__all__ = ["register"]

_BY = (
    "channel", "source", "medium", "campaign", "name", "term", "content", "landing", "product", "model",
)  # fmt: skip
_COLUMNS = "day, source, medium, campaign, currency, cost, clicks, impressions"


def register(commands: Commands, rules: ReportRules) -> None:
    commands.describe("costs", "import, list and remove the costs of campaigns")
    _add_report(commands, rules)
    _add_import(commands, rules)
    _add_list(commands)
    _add_remove(commands, rules)


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
    parser.add_argument(
        "--since", required=True, type=instant, metavar="TIME", help="a date, a time, or an age such as 30d"
    )
    parser.add_argument(
        "--until", type=instant, metavar="TIME", help="the end: a date, which is included, or a time, which is not"
    )
    parser.add_argument(
        "--by",
        type=_by,
        metavar="COLUMNS",
        help=f"the columns to group by, such as channel,source: {', '.join(_BY)}; campaign alone is source, medium and"
        " name; model shows all models beside each other; default: source",
    )
    parser.add_argument("--every", choices=EVERY, help="a row for each day, week or month")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="compare with the time before: of the same length, or a month with the month before",
    )
    parser.add_argument(
        "--paths", action="store_true", help="show the sequences of touchpoints before orders, by default of channels"
    )
    parser.add_argument(
        "--model", choices=MODELS, help="the model whose credits are added up; default: the model of each attribution"
    )
    parser.add_argument("--tenant", metavar="TENANT", help="only this shop")
    parser.add_argument(
        "--time-zone", type=_time_zone, default=rules.time_zone, metavar="ZONE",
        help="the time zone of dates, days, weeks and months; default: plugins.attribution.time_zone",
    )  # fmt: skip
    parser.add_argument("--keep-case", action="store_true", help="keep rows apart that differ only in case")
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


def _add_import(commands: Commands, rules: ReportRules) -> None:
    async def run(arguments: Namespace, daemon: Daemon) -> None:
        from .cost_commands import import_costs

        await import_costs(arguments, daemon, rules)

    parser = _add_costs(
        commands,
        "import",
        run,
        help=f"store the costs of a CSV file with the columns {_COLUMNS}",
        examples=["ingestd costs import november.csv --dry-run", "ingestd costs import november.csv --tenant shop"],
        json="print one JSON object",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the file, in UTF-8, with a header")
    parser.add_argument("--dry-run", action="store_true", help="check the file and show what would change")


def _add_list(commands: Commands) -> None:
    async def run(arguments: Namespace, daemon: Daemon) -> None:
        from .cost_commands import list_costs

        await list_costs(arguments, daemon)

    parser = _add_costs(
        commands,
        "list",
        run,
        help="show the stored costs",
        examples=["ingestd costs list --since 2026-11-01"],
        json="print one JSON object a line",
    )
    _add_days(parser, required=False)


def _add_remove(commands: Commands, rules: ReportRules) -> None:
    async def run(arguments: Namespace, daemon: Daemon) -> None:
        from .cost_commands import remove_costs

        await remove_costs(arguments, daemon, rules)

    parser = _add_costs(
        commands,
        "remove",
        run,
        help="remove all costs of some days",
        examples=["ingestd costs remove --since 2026-11-01 --until 2026-11-30 --dry-run"],
        json="print one JSON object",
    )
    _add_days(parser, required=True)
    parser.add_argument("--dry-run", action="store_true", help="show what would change")


def _add_costs(
    commands: Commands, name: str, run: Run, *, help: str, examples: Sequence[str], json: str
) -> ArgumentParser:
    parser = commands.add("costs", name, run, help=help, examples=examples, json=json)
    all_ = "only this shop" if name == "list" else "the shop; needed if there are several"
    parser.add_argument("--tenant", metavar="TENANT", help=all_)
    return parser


def _add_days(parser: ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--since", required=required, type=_day, metavar="DAY", help="the first day, as 2026-11-01")
    parser.add_argument("--until", required=required, type=_day, metavar="DAY", help="the last day")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError("expected a date such as 2026-11-01") from None
