"""Calls the hooks of plugins, one implementation after the other, and awaits coroutine functions.

The `hook` caller of pluggy would mistake the coroutine of an async implementation for its answer. So this module calls
the implementations itself. Their order is fixed at the start.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import pluggy

from ingestd.api.check_result import CheckResult
from ingestd.api.contents import Entry
from ingestd.api.errors import ConfigError, IngestdError, Refused
from ingestd.api.events import Event, Principal, Request, Session
from ingestd.api.hookspecs import Daemon
from ingestd.api.journeys import JourneyLead, JourneyPart, JourneyQuery, JourneyRecords
from ingestd.api.panels import Panel
from ingestd.api.privacy import Person, Visitors
from ingestd.api.store import State, Store
from ingestd.support.periodic import TIMING

__all__ = ["HookFailure", "Hooks", "register_all", "register_each"]

_PAGE = 2.0  # seconds within which a plugin must make its part of the operators' page


class HookFailure(IngestdError):
    """A hook raised an exception that is not an answer to the caller. `__cause__` is that exception."""

    def __init__(self, plugin: str, hook: str) -> None:
        super().__init__(f"plugin {plugin}: {hook} failed")


class _Call(NamedTuple):
    plugin: str
    function: Callable[..., Any]


Waits = Callable[[str], AbstractAsyncContextManager[object]]
"""Limits the call of a hook, by the name of the plugin."""


def _without_limit(plugin: str) -> AbstractAsyncContextManager[object]:
    return nullcontext()


class Hooks:
    """One typed function or method for each hook. Plugins that are registered later have no effect on it."""

    screen: Callable[[Request], Awaitable[None]]
    authenticate: Callable[[Request], Awaitable[Principal | None]]
    admit: Callable[[Request, Principal | None], Awaitable[None]]
    check_identity: Callable[[Event], None]
    prepare: Callable[[Event, Request], str | None] | None
    """None if no plugin implements `prepare`."""
    resolve_user: Callable[[Event, State], Awaitable[str | None]]
    resolve_session: Callable[[Event, State], Awaitable[Session | None]]
    store_identity: Callable[[Event, State], Awaitable[None]]
    enrich: Callable[[Event, State], Awaitable[None]]
    filter_event: Callable[[Event], Awaitable[str | None]]
    event_dropped: Callable[[Event, State], Awaitable[None]]

    def __init__(self, manager: pluggy.PluginManager, started: Collection[str] = ()) -> None:
        """`started` names the plugins whose `startup` must not be called: they run already, or take over."""
        self.screen = _all(manager, "screen")
        self.authenticate = _first(manager, "authenticate")
        self.admit = _all(manager, "admit")
        self.check_identity = _plain(manager, "check_identity")
        self.prepare = _prepare(manager)
        self.resolve_user = _first(manager, "resolve_user")
        self.resolve_session = _first(manager, "resolve_session")
        self.store_identity = _all(manager, "store_identity")
        self.enrich = _all(manager, "enrich")
        self.filter_event = _first(manager, "filter_event")
        self.event_dropped = _all(manager, "event_dropped")
        self.alters_events = bool(_chain(manager, "enrich") or _chain(manager, "filter_event"))
        """Whether a plugin implements `enrich` or `filter_event`."""
        self._startup = _chain(manager, "startup")
        self._shutdown = _chain(manager, "shutdown")[::-1]
        self._take_over = _chain(manager, "take_over")
        self._waiting = {call.plugin for call in self._startup} - {*started}  # not started yet
        self._store_lost = _chain(manager, "store_lost")
        self._show_panel = _chain(manager, "show_panel")
        self._find_journey = _chain(manager, "find_journey")
        self._explain_journey = _chain(manager, "explain_journey")
        self._state_parts = _chain(manager, "state_parts")
        self._merge_state = _chain(manager, "merge_state")
        self._advise = _chain(manager, "advise")
        self._find_visitors = _chain(manager, "find_visitors")
        self._forget_person = _chain(manager, "forget_person")
        for name in ("authenticate", "resolve_session"):
            if not _chain(manager, name):
                raise ConfigError(f"plugins.enabled: no plugin implements {name}, so no event could be accepted")

    async def startup(
        self, daemon: Daemon, only: Collection[str] | None = None, *, waits: Waits = _without_limit
    ) -> None:
        """Call `startup` of all plugins, or of these."""
        for call in self._startup:
            if only is not None and call.plugin not in only:
                continue
            async with waits(call.plugin):
                await _call_all([call], "startup", daemon)
            self._waiting.discard(call.plugin)

    async def take_over(self, predecessors: Mapping[str, object], daemon: Daemon) -> None:
        """Call `take_over` on the plugins with these names. `predecessors` has the instances in force."""
        for call in self._take_over:
            if call.plugin in predecessors:
                try:
                    async with asyncio.timeout(TIMING.plugin_startup):
                        await _call_all([call], "take_over", predecessors[call.plugin], daemon)
                except TimeoutError:
                    late = TimeoutError(f"it takes longer than {TIMING.plugin_startup:g} s, which is the limit")
                    raise HookFailure(call.plugin, "take_over") from late

    async def store_lost(self, store: Store) -> list[str]:
        """The data that plugins miss after a loss, as texts. Raises `HookFailure`, `Unavailable`."""
        return await _each(self._store_lost, "store_lost", store)

    async def show_panel(self, store: Store, selection: Mapping[str, str]) -> list[tuple[str, Panel | HookFailure]]:
        """The name and panel of each plugin. A plugin that failed has its failure instead of a panel."""
        return await _each_in_time(self._show_panel, "show_panel", store, selection)

    async def find_journey(
        self, query: JourneyQuery, store: Store
    ) -> list[tuple[str, Sequence[JourneyLead] | HookFailure]]:
        """The name and leads of each plugin, or its failure."""
        return await _each_in_time(self._find_journey, "find_journey", query, store)

    async def explain_journey(self, found: JourneyRecords, store: Store) -> list[tuple[str, JourneyPart | HookFailure]]:
        """The name and explanation of each plugin, or its failure."""
        return await _each_in_time(self._explain_journey, "explain_journey", found, store)

    async def state_parts(self, store: Store) -> dict[str, set[str]]:
        """The texts of all plugins, by tenant. Raises `HookFailure`, `Unavailable`."""
        found: dict[str, set[str]] = {}
        for answer in await _each(self._state_parts, "state_parts", store):
            for tenant, texts in answer.items():
                found.setdefault(tenant, set()).update(texts)
        return found

    async def merge_state(self, entries: Sequence[Entry]) -> Entry | None:
        """The first plugin's entry in place of several; None without one. Raises `HookFailure`, `Unavailable`."""
        for call in self._merge_state:
            for entry in await _each([call], "merge_state", entries):
                merged: Entry = entry
                return merged
        return None

    async def advise(self, store: Store) -> list[CheckResult]:
        """The advice of all plugins. Raises `HookFailure`, `Unavailable`."""
        return [finding for answer in await _each(self._advise, "advise", store) for finding in answer]

    async def find_visitors(self, tenant: str, user_id: str, store: Store) -> Visitors:
        answers = await _each(self._find_visitors, "find_visitors", tenant, user_id, store)
        return Visitors({digest for answer in answers for digest in answer.digests})

    async def forget_person(self, person: Person, state: State) -> Counter[str]:
        counts: Counter[str] = Counter()
        for answer in await _each(self._forget_person, "forget_person", person, state):
            counts.update(answer)
        return counts

    async def shutdown(self, waits: Waits = _without_limit) -> list[HookFailure]:
        """Call every implementation, and return the failures.

        Plugins whose `startup` was not called or failed are skipped.
        """
        failures = []
        for call in self._shutdown:
            if call.plugin in self._waiting:
                continue
            try:
                async with waits(call.plugin):
                    await _each([call], "shutdown")
            except Exception as error:  # noqa: BLE001 - the other plugins must be shut down, whatever one raises
                failures.append(_failure_of(call, "shutdown", error))
        return failures


def register_all(manager: pluggy.PluginManager, hook: str, argument: object) -> None:
    """Call a registration hook, `register_…`, of every plugin.

    Raises `ConfigError`, which names the plugin, if a hook raises or is a coroutine function.
    """
    register_each(manager, hook, lambda plugin: argument)


def register_each(manager: pluggy.PluginManager, hook: str, argument_for: Callable[[str], object]) -> None:
    """Like `register_all`, but `argument_for` makes the argument for each plugin from its name."""
    for plugin, function in _chain(manager, hook):
        try:
            answer = function(argument_for(plugin))
        except ConfigError as error:
            raise ConfigError(f"plugin {plugin}: {error}") from error
        except Exception as error:
            raise ConfigError(f"plugin {plugin}: {hook} failed: {error!r}") from error
        if inspect.iscoroutine(answer):
            answer.close()
            raise ConfigError(f"plugin {plugin}: {hook} cannot be a coroutine function")


def _chain(manager: pluggy.PluginManager, name: str) -> list[_Call]:
    caller = getattr(manager.hook, name)
    names = tuple(caller.spec.argnames)
    calls = []
    for impl in reversed(caller.get_hookimpls()):
        if impl.hookwrapper or impl.wrapper:
            raise ConfigError(f"plugin {impl.plugin_name}: {name} cannot be a wrapper")
        calls.append(_Call(impl.plugin_name, _adapt(impl.function, impl.argnames, names)))
    return calls


def _adapt(function: Callable[..., Any], takes: Sequence[str], given: tuple[str, ...]) -> Callable[..., Any]:
    """A function that takes all arguments of the hook and passes on those that the implementation has.

    An implementation with all arguments is called directly.
    """
    if tuple(takes) == given:
        return function
    indices = [given.index(name) for name in takes]

    def call(*arguments: Any) -> Any:
        return function(*[arguments[index] for index in indices])

    return call


def _first(manager: pluggy.PluginManager, hook: str) -> Callable[..., Awaitable[Any]]:
    """A function that calls one implementation after the other, until an answer is not None."""
    chain = _chain(manager, hook)
    if len(chain) == 1 and inspect.iscoroutinefunction(chain[0].function):
        return _guarded(chain[0], hook)

    async def first(*arguments: Any) -> Any:
        for plugin, function in chain:
            try:
                answer = function(*arguments)
                if answer is not None and hasattr(answer, "__await__"):
                    answer = await answer
            except Refused:
                raise
            except Exception as error:
                raise HookFailure(plugin, hook) from error
            if answer is not None:
                return answer
        return None

    return first


def _guarded(call: _Call, hook: str) -> Callable[..., Awaitable[Any]]:
    """Like `_first`, for the most frequent case: one implementation, which is a coroutine function."""
    plugin, function = call

    async def guarded(*arguments: Any) -> Any:
        try:
            return await function(*arguments)
        except Refused:
            raise
        except Exception as error:
            raise HookFailure(plugin, hook) from error

    return guarded


def _all(manager: pluggy.PluginManager, hook: str) -> Callable[..., Awaitable[None]]:
    """A function that calls all implementations, one after the other."""
    return partial(_call_all, _chain(manager, hook), hook)


def _plain(manager: pluggy.PluginManager, hook: str) -> Callable[..., None]:
    """A function that calls all implementations. None of them is a coroutine function."""
    chain = _plain_chain(manager, hook)

    def call_all(*arguments: Any) -> None:
        for plugin, function in chain:
            try:
                function(*arguments)
            except Refused:
                raise
            except Exception as error:
                raise HookFailure(plugin, hook) from error

    return call_all


def _prepare(manager: pluggy.PluginManager) -> Callable[[Event, Request], str | None] | None:
    """A function that calls one `prepare` after the other, until one drops the event. None without implementations."""
    chain = _plain_chain(manager, "prepare")

    def prepare(event: Event, request: Request) -> str | None:
        for plugin, function in chain:
            anonymous_id, session_id = event.anonymous_id, event.session_id
            user_id, message_id = event.user_id, event.message_id
            try:
                reason = function(event, request)
                if reason is not None:
                    return _reason(reason)
                if not (
                    event.anonymous_id is anonymous_id
                    and event.session_id is session_id
                    and event.user_id is user_id
                    and event.message_id is message_id
                ):
                    event.check_ids()
            except Refused:
                raise
            except Exception as error:
                raise HookFailure(plugin, "prepare") from error
        return None

    return prepare if chain else None


def _reason(answer: object) -> str:
    """Check the reason to drop an event. A plugin that returns the event by mistake must not drop every event."""
    if isinstance(answer, str):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
    raise TypeError(f"expected None or a text, the reason to drop the event; got a {type(answer).__name__}")


def _plain_chain(manager: pluggy.PluginManager, hook: str) -> list[_Call]:
    for impl in getattr(manager.hook, hook).get_hookimpls():
        if inspect.iscoroutinefunction(impl.function) or inspect.isasyncgenfunction(impl.function):
            raise ConfigError(f"plugin {impl.plugin_name}: {hook} cannot be a coroutine function")
    return _chain(manager, hook)


async def _call_all(chain: Sequence[_Call], hook: str, *arguments: Any) -> None:
    for plugin, function in chain:
        try:
            answer = function(*arguments)
            if answer is not None and hasattr(answer, "__await__"):
                await answer
        except (Refused, ConfigError):
            raise
        except Exception as error:
            raise HookFailure(plugin, hook) from error


async def _each(chain: Sequence[_Call], hook: str, *arguments: Any) -> list[Any]:
    """Call all implementations, and return the answers that are not None."""
    answers = []
    for plugin, function in chain:
        try:
            answer = function(*arguments)
            if hasattr(answer, "__await__"):
                answer = await answer
        except IngestdError:
            raise
        except Exception as error:
            raise HookFailure(plugin, hook) from error
        if answer is not None:
            answers.append(answer)
    return answers


async def _each_in_time(chain: Sequence[_Call], hook: str, *arguments: Any) -> list[tuple[str, Any]]:
    """The plugin and its answer, unless it is None. A plugin that fails or takes too long has its failure instead."""
    answers: list[tuple[str, Any]] = []
    for call in chain:
        try:
            async with asyncio.timeout(_PAGE):
                given = await _each([call], hook, *arguments)
        except Exception as error:  # noqa: BLE001 - the page shows the other plugins, whatever one raises
            answers.append((call.plugin, _failure_of(call, hook, error)))
        else:
            answers += [(call.plugin, answer) for answer in given]
    return answers


def _failure_of(call: _Call, hook: str, error: Exception) -> HookFailure:
    """The failure of a hook whose other implementations are still called."""
    failure = HookFailure(call.plugin, hook)
    failure.__cause__ = error.__cause__ if isinstance(error, HookFailure) else error
    return failure
