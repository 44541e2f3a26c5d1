"""Every hook there is, with its contract. docs/hooks.md has an example of each.

Plugins are called in the order of `[plugins] enabled`. `register_…`, `check_identity` and `prepare` are plain
functions. Any other hook may be a plain function or a coroutine function. A plain one runs on the event loop and must
not block it. An implementation may leave out arguments it does not need.

Raising on the path of an event: a `Refused` error (`Unauthorized`, `BadRequest` …) is the caller's
answer; anything else is answered 500, counted as `failed` and logged with the plugin's name.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from . import HOOK_NAMESPACE
from .backend import Backend
from .consumer import Consumer
from .events import Event, Principal, Request, Session
from .findings import Finding
from .journal import Journal
from .panels import Panel
from .person import Person, Visitors
from .sink import Sink
from .store import State, Store
from .unusable_ids import UnusableIds

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["HOOK_NAMESPACE", "BackendFactory", "Commands", "Daemon", "Run"]

hookspec = pluggy.HookspecMarker(HOOK_NAMESPACE)

BackendFactory = Callable[[str, Path], Backend]
"""Makes a back end from its URL and the folder that relative paths start from.

Raises `ConfigError` for a URL that can never work.
"""


class Daemon(Protocol):
    """What a plugin gets of the running daemon, or of a command that has opened the store."""

    store: Store
    journal: Journal
    unusable_ids: UnusableIds
    """Texts that clients send as an id and that name nobody: `[ids] unusable`."""
    registry: CollectorRegistry
    """Where a plugin registers its Prometheus metrics, each named `ingestd_<plugin>_…`.

    A collector of its own is asked on another thread than the event loop's, and must only read.
    """

    def plugin(self, name: str) -> object | None:
        """The loaded plugin of that name, for what it offers others."""

    def watch(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run a task beside the daemon. It is cancelled at shutdown; if it dies, the daemon stops."""


Run = Callable[[argparse.Namespace, Daemon], Awaitable[None]]
"""A command's body. `CommandError` is printed and exits 1."""


class Commands(Protocol):
    """Where plugins add commands: `ingestd GROUP NAME`."""

    def add(
        self, group: str, name: str, run: Run, *, help: str, examples: Sequence[str] = ()
    ) -> argparse.ArgumentParser:
        """Add a command and return its parser, for its arguments.

        `examples` are whole command lines, which its help and `ingestd GROUP --help` show.
        """


# Registration: called once, when the plugins are loaded, and at each reload for the sinks. Raising stops the start.


@hookspec
def register_stores(register: Callable[[str, BackendFactory], None]) -> None:
    """Offer a back end for `[store] url` and `[journal] url`: `register(scheme, factory)`."""


@hookspec
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    """Offer a kind of sink for `[sinks.NAME] type`: `register(type, SinkClass)`."""


@hookspec
def register_consumers(register: Callable[[Consumer], None]) -> None:
    """Add work behind the answer: `register(consumer)`."""


@hookspec
def register_commands(commands: Commands) -> None:
    """Add commands to the command line."""


# Life


@hookspec
def startup(daemon: Daemon) -> None:
    """Called once when store and journal are open, before any request. Raising stops the start."""


@hookspec
def take_over(predecessor: object, daemon: Daemon) -> None:
    """Called instead of `startup` on a plugin that a reload makes anew, since its options have changed.

    `predecessor` is the one in force, of the same class. What it has registered, watches or remembers is to be gone on
    with. Events go on passing through it, and those that have begun end there; its `shutdown` is not called. Raising
    refuses the reload, so the predecessor must stay as it is. Without this hook, or where the plugin has registered
    consumers or stores, other options take a restart.
    """


@hookspec
def shutdown() -> None:
    """Called once after the last request was answered, in reverse order. Raising is logged.

    If the startup of a plugin fails, those whose startup was not called yet, and that one itself, are
    not called here.
    """


@hookspec
def store_lost(store: Store) -> str | None:
    """The store has lost data: it is empty, or holds an older state. What is missing? None: nothing that can be told.

    Write again what the configuration says, and read again what is kept in memory. The loss stands until no plugin
    misses anything, or until an operator acknowledges it: `store.loss` is None then. It is called once after each loss,
    and every second while one stands, by every daemon. So it must not matter how often. Raising is logged, and the loss
    stands.
    """


@hookspec
def show_panel(store: Store, selection: Mapping[str, str]) -> Panel | None:
    """What do operators see of this plugin on their page? None: nothing.

    Called while somebody looks at the page, at most once a second for each selection, and given two seconds.
    `selection` has the parameters of the page's address, for the panel's filters: whoever looks may have written
    anything there. Raising is logged once, and the panel says that it cannot be shown.
    """


@hookspec
def advise(store: Store) -> Sequence[Finding] | None:
    """What should operators know of this plugin's options? `ingestd check` shows it; None: nothing.

    `startup` has not been called. Nothing may be written.
    """


# The path of an event


@hookspec
def screen(request: Request) -> None:
    """Is this request to be looked at? Raise `Limited` to answer 429 without any further work.

    Called first for every request to an ingest endpoint that has come whole. Nothing is known of the sender but
    `request.peer`, and a batch counts as one event. `admit` is not called for what is refused here.
    """


@hookspec(firstresult=True)
def authenticate(request: Request) -> Principal | None:
    """Who sends this? The first answer that is not None counts; if nobody knows, it is a 401.

    Called for every request to an ingest endpoint, before its body is read as JSON. Raise `Unauthorized` to end the
    search with a reason, or `Unavailable` where it cannot be told now.
    """


@hookspec
def admit(request: Request, principal: Principal | None) -> None:
    """Has this sender sent too much? Raise `Limited` to answer 429, before anything else is said.

    Called once `authenticate` has been asked, unless that has raised `Unavailable`. A batch is one request, of
    `request.events` events. `principal` is None if nobody knows the sender or an `authenticate` refused: the answer
    will be that refusal, a 401 most often.
    """


@hookspec
def check_identity(event: Event) -> None:
    """Is this identify request acceptable? Raise `BadRequest` to refuse it before anything of it is stored.

    Not called for events. The body agrees with its schema by then. It cannot be a coroutine function: the request is
    still being read.
    """


@hookspec(firstresult=True)
def prepare(event: Event, request: Request) -> str | None:
    """Change an event or identify request in place, or drop it: the first answer that is not None is the reason.

    Called once for each, when its body is known to be valid, and before its message, user and session are looked up. A
    dropped one is answered 200 and leaves nothing behind: no session, no link, no message id, no record. Its outcome is
    `dropped`.

    `data`, `traits`, `context`, `extra`, `timestamp`, `anonymous_id`, `user_id`, `session_id`, `dispatch_id` and
    `message_id` may be changed; the daemon then goes by the new ids. The schema is not checked again. An id that no
    request may bring fails the event, and so does an answer that is neither text nor None. It cannot be a coroutine
    function.
    """


@hookspec(firstresult=True)
def resolve_user(event: Event, state: State) -> str | None:
    """Which user is this visitor? The first answer that is not None counts.

    Called for events (not identify requests) that name no user and have a visitor (`event.has_visitor`); for one event
    maybe twice, as for `resolve_session`.
    """


@hookspec(firstresult=True)
def resolve_session(event: Event, state: State) -> Session | None:
    """In which session does this happen? The first answer that is not None counts.

    Called for events and identify requests that have a visitor (`event.has_visitor`). `event.session_id` is what the
    caller supplied, or None. No answer at all is answered 500. On a store that is a trip away it may be called twice
    for one event: first on what the daemon remembers, then, where that is not enough or no longer true, on the state.
    """


@hookspec
def store_identity(event: Event, state: State) -> None:
    """Keep what an identify request says: its link and traits. Not called for events, nor where there is no visitor.

    Who keeps links sets `event.linked`: whether the visitor is linked to `event.user_id` by this request. The record
    tells it, and attribution goes by it. `event.signed` tells whether a server sent the request.
    """


@hookspec
def enrich(event: Event, state: State) -> None:
    """Change or add to an event or identify request before it is stored, in place.

    User and session are known by then. What needs neither belongs in `prepare`, which costs less on Redis.
    """


@hookspec(firstresult=True)
def filter_event(event: Event) -> str | None:
    """Drop an event or identify request: the first answer that is not None is the reason.

    The caller is answered 200 with the session; nothing is stored in the journal, and the outcome is `dropped`. What
    the event has done to its link and traits stays. A session it has begun goes on, and is new to the next event.
    `prepare` drops an event before it does anything.
    """


@hookspec
def event_dropped(event: Event, state: State) -> None:
    """An event or identify request has been dropped by `filter_event`. Take back what no record will tell now.

    `event.session_is_new` tells whether it has begun its session. Others may have seen that session already.
    """


# Forgetting a person


@hookspec
def find_visitors(tenant: str, user_id: str, store: Store) -> Visitors | None:
    """Which visitors are linked to this user at present?

    Called by `ingestd forget --user`. The answers of all plugins count together.
    """


@hookspec
def forget_person(person: Person, state: State) -> Mapping[str, int] | None:
    """Delete what is remembered of a person, and return how many of each thing, by name.

    Called by `ingestd forget`, a unit of work a call: for a user with many visitors once for some of
    them at a time. Nothing must be done but by `state`, whose writes are ignored where the person is
    only being looked for. What is deleted already is not counted.
    """
