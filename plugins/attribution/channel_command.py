"""The command `ingestd attribution channel`: the source and channel of an arrival, and the rule of each."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from ingestd.api.hookspecs import Commands, Daemon
from ingestd.api.output import write_result
from ingestd.support.terminal import printable

from ..sources import Channels
from .arrivals import Arrivals
from .touches import NONE

__all__ = ["arrival", "register"]

_EXCLUDED = {
    "excluded_source": "exclude_sources has the source",
    "excluded_medium": "exclude_mediums has the medium",
    "excluded_domain": "exclude_domains has the source or the referrer",
}


def register(commands: Commands, arrivals: Arrivals, channels: Channels) -> None:
    async def run(arguments: Namespace, daemon: Daemon) -> None:
        given = {"source": arguments.source, "medium": arguments.medium, "name": arguments.campaign}
        page = {"url": arguments.url, "referrer": arguments.referrer}
        found = arrival(given, page, arrivals, channels)
        write_result(found, lines=_lines(found), as_json=arguments.json)

    parser = commands.add(
        "attribution",
        "channel",
        run,
        help="show the source and channel of an arrival, and the rule that takes it",
        examples=[
            "ingestd attribution channel --source newsletter --medium email",
            "ingestd attribution channel --url 'https://shop.example/?gclid=x' --referrer https://www.google.com/",
        ],
        json="print a JSON object",
    )
    parser.add_argument("--source", metavar="TEXT", help="the source of a campaign, such as google")
    parser.add_argument("--medium", metavar="TEXT", help="the medium of a campaign, such as cpc")
    parser.add_argument("--campaign", metavar="TEXT", help="the name of a campaign")
    parser.add_argument("--url", metavar="URL", help="the address of the page, with a campaign or a click id")
    parser.add_argument("--referrer", metavar="URL", help="the address that led to the page")


def arrival(
    campaign: Mapping[str, str | None], page: Mapping[str, str | None], arrivals: Arrivals, channels: Channels
) -> dict[str, Any]:
    """What the first event of a session with this campaign and `context.page` tells, with the rules in words."""
    found = arrivals.of(dict(campaign), page, has_dispatch=False, is_first=lambda: True)
    sources, kind = arrivals.sources, None if found is None else found.named_by or "campaign"
    source, medium, name, *_ = NONE if found is None else found.campaign
    click = None if found is None else found.click
    channel, channel_rule = channels.explain(source, medium, name) if kind else ("Direct", "there is no touchpoint")
    rule = "the campaign names it"
    if kind == "click" and click is not None:
        rule = sources.explain_click(click.type)
    elif kind != "campaign":
        rule = sources.explain_referrer(page).rule if arrivals.has_referrers else "referrers are off"
    return {
        "kind": kind,
        "source": source,
        "medium": medium,
        "name": name,
        "clickId": None if click is None else click._asdict(),
        "channel": channel,
        "sourceRule": rule,
        "channelRule": channel_rule,
        "excluded": None if found is None or found.excluded is None else _EXCLUDED[found.excluded],
    }


def _lines(found: Mapping[str, Any]) -> list[str]:
    texts = [str(found[field]) if found[field] else "-" for field in ("source", "medium", "name")]
    lines = [
        f"channel   {found['channel']}: {found['channelRule']}",
        f"source    {' / '.join(texts)}: {found['sourceRule']}",
        f"kind      {found['kind'] or 'none, so an order without other touchpoints is direct'}",
    ]
    if found["excluded"]:
        lines.append(f"excluded  it makes no touchpoint: {found['excluded']}")
    if found["clickId"]:
        lines.append(f"click id  {found['clickId']['type']} {found['clickId']['id']}")
    return [printable(line) for line in lines]
