"""Every hook of ingestd with its contract. docs/hooks.md has the rules, examples/hooks an example of each.

ingestd calls the plugins in the order of `[plugins] enabled`. `register_…`, `check_identity` and `prepare` are plain
functions. Any other hook may be a plain function or a coroutine function. A plain function runs on the event loop and
must not block it. An implementation may omit arguments that it does not need.

A hook on the path of an event may raise. A `Refused` error (`Unauthorized`, `BadRequest` …) becomes the answer to the
caller. Any other exception is answered 500, counted as `failed`, and logged with the name of the plugin.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from ingestd.support.unusable_ids import UnusableIds

from . import HOOK_NAMESPACE
from .backend import Backend, Partition
from .check_result import CheckResult
from .consumer import Consumer
from .contents import Entry
from .events import Event, Principal, Request, Session
from .intake import Intake
from .journeys import JourneyLead, JourneyPart, JourneyQuery, JourneyRecords
from .panels import Panel
from .privacy import Person, Visitors
from .sink import Sink, Transform
from .store import State, Store

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["HOOK_NAMESPACE", "BackendFactory", "Commands", "Daemon", "Run"]

hookspec = pluggy.HookspecMarker(HOOK_NAMESPACE)

BackendFactory = Callable[[str, Path], Backend]
"""Makes a back end from its URL and the base folder of relative paths.

Raises `ConfigError` for a URL that can never work.
"""


class Daemon(Protocol):
    """The part of a running daemon that plugins use. A command that has opened the store offers the same."""

    store: Store
    partitions: Sequence[Partition]
    """The stores and journals of the back end. Most back ends have a single one."""
    unusable_ids: UnusableIds
    """The texts that clients send as an id and that name nobody: `[ids] unusable`."""
    config_path: str
    """The path of the configuration, for command lines that a plugin shows."""
    registry: CollectorRegistry
    """Takes the Prometheus metrics of plugins, each named `ingestd_<plugin>_…`.

    A custom collector runs on another thread than the event loop, and must only read.
    """

    def of_tenant(self, tenant: str) -> Partition:
        """The partition that has the state of a tenant, and gets its records."""

    def all_of_tenant(self, tenant: str) -> Sequence[Partition]:
        """The partitions with records of a tenant: its own first, then those that it was moved from."""

    def plugin(self, name: str) -> object | None:
        """The loaded plugin of that name, or None."""

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run a task beside the daemon. A shutdown cancels the task. If the task ends earlier, the daemon stops."""


Run = Callable[[argparse.Namespace, Daemon], Awaitable[None]]
"""The body of a command. The command prints a `CommandError` and exits 1."""


class Commands(Protocol):
    """Takes the commands of plugins: `ingestd GROUP NAME`."""

    def add(
        self, group: str, name: str, run: Run, *, help: str, examples: Sequence[str] = (), json: str = ""
    ) -> argparse.ArgumentParser:
        """Add a command and return its parser, for further arguments.

        `examples` are whole command lines. The help of the command and `ingestd GROUP --help` show them. `json` is the
        help of the option `--json`; without a text the command has none. `ingestd.api.output` prints the result.
        """

    def describe(self, group: str, help: str) -> None:
        """Say in the help what a group of commands is for."""


# Registration: called once when the plugins are loaded, and at each reload for sinks and intakes. Raising stops the
# start.


@hookspec
def register_stores(register: Callable[[str, BackendFactory], None]) -> None:
    """Offer a back end for `[store] url` and `[journal] url`: `register(scheme, factory)`."""


@hookspec
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    """Offer a kind of sink for `[sinks.NAME] type`: `register(type, SinkClass)`."""


@hookspec
def register_transforms(register: Callable[[str, Transform], None]) -> None:
    """Offer a change of records for `[sinks.NAME] transform`: `register(name, function)`.

    The function takes the JSON object of a record, which it may change. It returns the object for the sink, or None to
    leave the record out. Then the record counts as filtered. If the function raises, the record becomes a dead letter
    of the sink. The function must not block the event loop, and must not change the `id`.
    """


@hookspec
def register_channels(register: Callable[[str], None]) -> None:
    """Name the channels of attributions, for `[sinks.NAME] filter`: `register(channel)`. Other channels are refused."""


@hookspec
def register_consumers(register: Callable[[Consumer], None]) -> None:
    """Add a consumer, which works after the answer: `register(consumer)`.

    On a store with several partitions, what its `for_partition` returns runs in each of them.
    """


@hookspec
def register_intakes(register: Callable[[Intake], None]) -> None:
    """Take requests in another wire format, on other paths of the public listener: `register(intake)`."""


@hookspec
def register_commands(commands: Commands) -> None:
    """Add commands to the command line."""


# Start, reload and shutdown


@hookspec
def startup(daemon: Daemon) -> None:
    """Called once, after store and journal are open and before any request. Raising stops the start."""


@hookspec
def take_over(predecessor: object, daemon: Daemon) -> None:
    """Called instead of `startup` on the new instance of a plugin whose options a reload has changed.

    `predecessor` is the instance in force, of the same class. The new instance takes over its metrics, tasks and
    memory. Requests in progress end with the predecessor, so it must keep working. Its `shutdown` is not called.
    Raising refuses the reload. Then the predecessor stays in force, so it must be unchanged. Without this hook, other
    options need a restart. The same holds for a plugin that registered consumers or stores.
    """


@hookspec
def shutdown() -> None:
    """Called once after the last answer, in reverse order. Exceptions are logged.

    If the `startup` of a plugin fails, this hook is not called for that plugin, nor for plugins whose `startup` was not
    called yet.
    """


@hookspec
def store_lost(store: Store) -> str | None:
    """The store has lost data: it is empty, or holds an older state. Return what is missing, or None if nothing is
    known to be.

    Write the content of the configuration to the store again, and reload data that the plugin keeps in memory. The loss
    stands until no plugin misses data, or until an operator acknowledges it. Then `store.loss` is None. Every daemon
    calls the hook once after each loss, and every second while a loss stands. So repeated calls must do no harm.
    Exceptions are logged, and the loss stands. With several partitions, only a loss in the first one calls it.
    """


@hookspec
def show_panel(store: Store, selection: Mapping[str, str]) -> Panel | None:
    """Return the panel of this plugin on the operators' page, or None for no panel.

    The daemon calls the hook while somebody looks at the page, at most once a second for each selection. A call may
    take two seconds. `store.parts` has the stores of all partitions. `selection` has the parameters of the page's
    address, for the filters of the panel. Treat them as untrusted: the viewer can edit the address. An exception is
    logged once, and the panel says that it cannot be shown.
    """


@hookspec
def find_journey(query: JourneyQuery, store: Store) -> Sequence[JourneyLead] | None:
    """Lead the operators' page to the records of an order, a user or a visitor. None without a lead.

    The daemon calls the hook when an operator asks for a journey, before it reads the journal. Without a lead it
    searches the journal backwards, and may give up before it finds old records. A call may take two seconds. Treat the
    query as untrusted. An exception is logged, and the page says that the plugin has failed.

    `store` is the one of a partition. If the query names no tenant, the daemon asks for each partition, and reads the
    journal of the one that has a lead.
    """


@hookspec
def explain_journey(found: JourneyRecords, store: Store) -> JourneyPart | None:
    """Explain the records of a journey, or None for nothing to say.

    Called after `find_journey` and the search. The journal may have removed records of the journey, and the search may
    have ended before it found all. Say what the state still knows. A call may take two seconds. An exception is logged,
    and the page says that the plugin has failed.
    """


@hookspec
def state_parts(store: Store) -> Mapping[str, Collection[str]] | None:
    """Return texts from which this plugin makes keys of its state, by tenant; "" is for state of no tenant.

    Called by `ingestd partitions place`, and by `ingestd store copy` to a store with another number of partitions. They
    must find the tenant of each entry, and know all texts and numbers of all records, and the empty text. A plugin
    whose keys have other texts names them here, and tenants that may have no records. `startup` has not been called.
    Nothing may be written.
    """


@hookspec
def merge_state(entries: Sequence[Entry]) -> Entry | None:
    """Return one entry in place of these, which several partitions have under one key. None for another plugin's.

    Called by `ingestd store copy` from a store with several partitions to one with fewer or more, for state of no
    tenant: the steps of a consumer change it in each partition. `startup` has not been called.
    """


@hookspec
def advise(store: Store) -> Sequence[CheckResult] | None:
    """Return advice about the options of this plugin, which `ingestd check` shows, or None for no advice.

    `startup` has not been called. Nothing may be written.
    """


# The path of an event
#
# All hooks with a `state` belong to the transaction of their event. On a store with several daemons, another daemon may
# change meanwhile what the transaction has read. Then the event runs again, as it was after `prepare`: with a new
# transaction, from `resolve_user` on. So these hooks change nothing but the event and the state, and make all other
# effects with `state.on_commit`.


@hookspec
def screen(request: Request) -> None:
    """Admit or refuse a request before any other work. Raise `Limited` to answer 429 at once.

    This is the first hook of every complete request to an ingest endpoint. Only `request.peer` is known of the sender,
    and a batch counts as one event. `admit` is not called for a request that is refused here.
    """


@hookspec(firstresult=True)
def authenticate(request: Request) -> Principal | None:
    """Find the sender of a request. The first answer that is not None counts; without any answer the request gets 401.

    Called for every request to an ingest endpoint, before the daemon reads its body as JSON. Raise `Unauthorized` to
    end the search with a reason. Raise `Unavailable` if the sender cannot be found now.
    """


@hookspec
def admit(request: Request, principal: Principal | None) -> None:
    """Admit or refuse a request by its sender. Raise `Limited` to answer 429 before any other check of the request.

    Called after `authenticate`, unless `authenticate` raised `Unavailable`. A batch is one request with
    `request.events` events. `principal` is None if no plugin knows the sender, or if an `authenticate` refused the
    request. The answer will then be that refusal, mostly a 401.
    """


@hookspec
def check_identity(event: Event) -> None:
    """Accept an identify request, or raise `BadRequest` to refuse it before any of it is stored.

    Not called for events. The body is already valid against its schema. The hook cannot be a coroutine function,
    because the daemon is still reading the request.
    """


@hookspec(firstresult=True)
def prepare(event: Event, request: Request) -> str | None:
    """Change an event or identify request in place, or drop it: the first answer that is not None is the reason.

    Called once for each valid event or identify request, before the daemon looks up its message, user and session. A
    dropped one is answered 200 and leaves nothing behind: no session, link, message id or record. Its outcome is
    `dropped`.

    The hook may change `data`, `traits`, `context`, `extra`, `timestamp`, `anonymous_id`, `user_id`, `session_id`,
    `dispatch_id` and `message_id`. The daemon then uses the new ids. It does not check the schema again. An id that no
    request may contain fails the event, and so does an answer that is neither text nor None. The hook cannot be a
    coroutine function.
    """


@hookspec(firstresult=True)
def resolve_user(event: Event, state: State) -> str | None:
    """Find the user of a visitor. The first answer that is not None counts.

    Called for events that name no user and have a visitor (`event.has_visitor`). Not called for identify requests.
    """


@hookspec(firstresult=True)
def resolve_session(event: Event, state: State) -> Session | None:
    """Find or begin the session of an event. The first answer that is not None counts.

    Called for events and identify requests that have a visitor (`event.has_visitor`). `event.session_id` is the id that
    the caller sent, or None. Without any answer the request gets 500.
    """


@hookspec
def store_identity(event: Event, state: State) -> None:
    """Store the link and traits of an identify request. Not called for requests without a visitor.

    Also called for an event whose intake derived the visitor from the user (`event.links`), and for no other event.

    A plugin that stores links sets `event.linked`: whether this request links the visitor to `event.user_id`. The
    record contains it, and attribution uses it. `event.signed` tells whether a server sent the request.
    """


@hookspec
def enrich(event: Event, state: State) -> None:
    """Change an event or identify request in place before it is stored.

    Its user and session are known. A change that needs neither belongs in `prepare`.
    """


@hookspec(firstresult=True)
def filter_event(event: Event) -> str | None:
    """Drop an event or identify request: the first answer that is not None is the reason.

    The caller is answered 200 with the session. The journal stores nothing, and the outcome is `dropped`. Links and
    traits that were already stored stay. A session that the event began continues, and is new to its next event.
    `prepare` drops an event before anything is stored.
    """


@hookspec
def event_dropped(event: Event, state: State) -> None:
    """`filter_event` has dropped an event or identify request. Undo changes that only its record would explain.

    `event.session_is_new` tells whether the event began its session. Other events may already belong to that session.
    """


# Forgetting a person


@hookspec
def find_visitors(tenant: str, user_id: str, store: Store) -> Visitors | None:
    """Find the visitors that are linked to a user now.

    Called by `ingestd forget --user`, with the store of the tenant's partition. The answers of all plugins are
    combined.
    """


@hookspec
def forget_person(person: Person, state: State) -> Mapping[str, int] | None:
    """Delete the stored data of a person, and return the number of deleted entries by name.

    Called by `ingestd forget`, each call in one transaction. For a user with many visitors, each call has some of the
    visitors. Change nothing except through `state`. In a dry run its writes are ignored. Entries that were deleted
    earlier do not count.
    """
