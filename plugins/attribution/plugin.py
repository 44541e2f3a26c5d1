"""The plugin: its options and hooks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import field

from ingestd.api import hookimpl
from ingestd.api.check_result import CheckResult
from ingestd.api.consumer import Consumer
from ingestd.api.contents import Entry
from ingestd.api.hookspecs import Commands, Daemon
from ingestd.api.journeys import JourneyLead, JourneyPart, JourneyQuery, JourneyRecords
from ingestd.api.options import Duration, PositiveDuration
from ingestd.api.options import Options as BaseOptions
from ingestd.api.panels import Panel
from ingestd.api.privacy import Person
from ingestd.api.store import State, Store
from ingestd.api.times import now

from ..auth.key_registry import has_server_keys
from ..reports import sales
from ..reports.commands import register as register_reports
from ..reports.costs import days_of
from ..reports.journals import Pause
from ..reports.periods import TimeZone
from ..reports.reading import ReportRules
from ..sources import ChannelRule, Channels, ClickSource, SourceRules
from .arrivals import Arrivals, Referrers
from .channel_command import register as register_channel_command
from .commands import register as register_attribution_commands
from .consumer import AttributionConsumer, Rules, Tally
from .journey_page import explain, find
from .journeys import Limits, forget
from .marks import TENANTS
from .models import Model
from .panel import show
from .rollups import merge, rollup_parts
from .touches import Exclusions

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["AttributionPlugin"]

_MOST_TOUCHES, _MOST_VISITORS = 200, 100  # of a visitor; of a user

_ORDERS = ("attributed", "direct", "repeated", "conflict", "untrusted", "too_many")
_REVERSALS = (
    "reversed",
    "nothing_left",
    "no_amount",
    "waiting",
    "repeated",
    "other_currency",
    "unknown_order",
    "too_many",
    "untrusted",
    "superseded",
)


class AttributionPlugin:
    class Options(BaseOptions):
        window: PositiveDuration = Duration.parse("7d")
        model: Model = "last_touch"
        half_life: PositiveDuration = Duration.parse("7d")
        late: Duration = Duration.parse("7d")
        orders: Literal["any", "signed"] = "any"
        order_memory: PositiveDuration = Duration.parse("400d")
        referrers: Referrers = "fallback"
        exclude_sources: tuple[str, ...] = ()
        exclude_mediums: tuple[str, ...] = ()
        exclude_domains: tuple[str, ...] = ()
        time_zone: TimeZone = TimeZone("UTC")
        own_domains: tuple[str, ...] = ()
        click_ids: dict[str, ClickSource] = field(default_factory=dict)
        channels: tuple[ChannelRule, ...] = ()
        former: ClassVar[Mapping[str, str]] = {
            "max_touches": f"it is always {_MOST_TOUCHES} now", "max_visitors": f"it is always {_MOST_VISITORS} now"
        }  # fmt: skip

    def __init__(
        self, options: Options, *, most_touches: int = _MOST_TOUCHES, most_visitors: int = _MOST_VISITORS
    ) -> None:
        exclusions = Exclusions(options.exclude_sources, options.exclude_mediums, options.exclude_domains)
        sources = SourceRules(
            click_ids=options.click_ids, own_domains=options.own_domains, exclude_domains=options.exclude_domains
        )
        rules = Rules(
            model=options.model,
            half_life=options.half_life.milliseconds,
            limits=Limits(
                window=options.window.milliseconds,
                late=options.late.milliseconds,
                max_touches=most_touches,
                max_visitors=most_visitors,
                referrers=options.referrers,
            ),
            order_memory=options.order_memory.milliseconds,
            arrivals=Arrivals(exclusions, sources, options.referrers),
            channels=Channels(options.channels),
            signed_orders=options.orders == "signed",
        )
        self._consumer = AttributionConsumer(rules)
        self._rules = rules
        self._daemon: Daemon | None = None  # given by `startup`
        self._report_rules = ReportRules(rules.arrivals, rules.channels, options.time_zone, rules.order_memory)

    @hookimpl
    def register_consumers(self, register: Callable[[Consumer], None]) -> None:
        register(self._consumer)

    @hookimpl
    def register_channels(self, register: Callable[[str], None]) -> None:
        for channel in self._rules.channels.names:
            register(channel)

    @hookimpl
    def register_commands(self, commands: Commands) -> None:
        register_attribution_commands(commands, self._rules.channels)
        register_reports(commands, self._report_rules)
        register_channel_command(commands, self._rules.arrivals, self._rules.channels)

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        self._consumer.tally = _counted(daemon.registry)
        self._consumer.unusable_ids = daemon.unusable_ids
        self._daemon = daemon

    async def make_sales(self, given: Mapping[str, str], pause: Pause) -> dict[str, Any]:
        """The members of /sales.json, for the page of marketers. Raises `BadRequest`, `Unavailable`."""
        return await sales.make_sales(self._shop(), given, pause)

    async def latest_orders(self, count: int, pause: Pause) -> list[dict[str, Any]]:
        return await sales.latest_orders(self._shop(), count, pause)

    def _shop(self) -> sales.Shop:
        assert self._daemon is not None
        return sales.Shop(self._daemon, self._report_rules)

    @hookimpl
    async def show_panel(self, store: Store, selection: Mapping[str, str]) -> Panel:
        assert self._daemon is not None
        return await show(store, self._rules.model, self._daemon.config_path, selection)

    @hookimpl
    async def find_journey(self, query: JourneyQuery, store: Store) -> Sequence[JourneyLead]:
        return await find(query, store)

    @hookimpl
    async def explain_journey(self, found: JourneyRecords, store: Store) -> JourneyPart:
        return await explain(found, store, self._rules, self._consumer.unusable_ids)

    @hookimpl
    async def state_parts(self, store: Store) -> Mapping[str, Collection[str]]:
        tenants, costs = {tenant async for _, tenant in store.scan(TENANTS)}, await days_of(store)
        parts = rollup_parts(now())
        return {tenant: [*parts, *costs.get(tenant, ())] for tenant in ["", *tenants, *costs]}

    @hookimpl
    def merge_state(self, entries: Sequence[Entry]) -> Entry | None:
        return merge(entries)

    @hookimpl
    async def advise(self, store: Store) -> Sequence[CheckResult]:
        if self._rules.signed_orders or not await has_server_keys(store):
            return []
        text = (
            'orders = "any": anybody can send an order or a refund with the public key. There is a server key, so'
            ' if the backend sends all orders, set plugins.attribution.orders = "signed" (docs/trust.md)'
        )
        return [CheckResult("attribution.orders", text)]

    @hookimpl
    async def forget_person(self, person: Person, state: State) -> Mapping[str, int]:
        return await forget(person, state)


def _counted(registry: CollectorRegistry) -> Tally:
    from prometheus_client import Counter  # here, so that commands, which count nothing, start sooner

    orders = Counter("ingestd_attribution_orders", "Completed orders by result.", ["result"], registry=registry)
    reversals = Counter(
        "ingestd_attribution_reversals", "Refunds and cancellations by result.", ["result"],
        registry=registry,
    )  # fmt: skip
    amounts = Counter(
        "ingestd_attribution_amounts_ignored", "Amounts of orders and refunds that are too large to count.",
        registry=registry,
    )  # fmt: skip
    of_orders = {result: orders.labels(result).inc for result in _ORDERS}
    of_reversals = {result: reversals.labels(result).inc for result in _REVERSALS}
    return Tally(lambda result: of_orders[result](), lambda result: of_reversals[result](), amounts.inc)
