"""The hooks on the path of an event: the called plugins, their order, and their exceptions."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, cast

import pluggy
import pytest

from ingestd.api import hookimpl, hookspecs
from ingestd.api.errors import BadRequest, ConfigError, Limited, Refused
from ingestd.api.events import Endpoint, Event, Principal, Request, Session
from ingestd.api.hookspecs import HOOK_NAMESPACE, Daemon
from ingestd.api.store import State
from ingestd.hooks.caller import HookFailure, Hooks, register_all

REQUEST = Request(Endpoint.TRACK, {}, b"{}", received_at=0)
STATE = cast("State", object())  # the hooks pass it on and do not use it


@pytest.fixture(autouse=True)
def no_coroutine_is_left_unawaited() -> Iterator[None]:
    yield
    gc.collect()  # Python warns of an unawaited coroutine, and tests fail on warnings


def event() -> Event:
    return Event(
        id="e", type="event", tenant="shop", endpoint=Endpoint.TRACK, received_at=0, timestamp=0, key="Page View",
        data={}, traits={}, anonymous_id="a", user_id=None, session_id=None, session_is_new=False, dispatch_id=None,
        message_id=None, context={}, extra={},
    )  # fmt: skip


def plugin(*, awaits: bool = False, **implementations: Callable[..., Any]) -> object:
    """A plugin with these hooks as plain functions, or with `awaits` as coroutine functions."""

    def bound(function: Callable[..., Any]) -> Callable[..., Any]:
        names = ", ".join(function.__code__.co_varnames[: function.__code__.co_argcount])
        # pluggy passes arguments by the signature, so the coroutine function needs the same one.
        source = f"async def hook({names}):\n    await sleep(0)\n    return function({names})\n"
        namespace: dict[str, Any] = {"sleep": asyncio.sleep, "function": function}
        exec(source, namespace)
        made: Callable[..., Any] = namespace["hook"]
        return made

    instance = type("Plugin", (), {})()
    for name, function in implementations.items():
        setattr(instance, name, hookimpl(bound(function) if awaits else function))
    return instance


def manager(**plugins: object) -> pluggy.PluginManager:
    """A manager with these plugins, in this order. A plugin with the two required hooks comes last."""
    needed = plugin(
        authenticate=lambda request: Principal("shop", "last"), resolve_session=lambda: Session("last", is_new=False)
    )
    made = pluggy.PluginManager(HOOK_NAMESPACE)
    made.add_hookspecs(hookspecs)
    for name, each in reversed([*plugins.items(), ("needed", needed)]):
        made.register(each, name)
    return made


def hooks(**plugins: object) -> Hooks:
    return Hooks(manager(**plugins))


BOTH = pytest.mark.parametrize("awaits", [False, True], ids=["plain", "coroutine"])


@BOTH
async def test_every_hook_reaches_its_plugin_with_its_arguments_and_returns_its_answer(awaits: bool) -> None:
    seen: list[tuple[str, tuple[object, ...]]] = []

    def record(name: str, *arguments: object, answer: object = None) -> Any:
        seen.append((name, arguments))
        return answer

    principal, session, subject = Principal("shop", "k"), Session("s", is_new=True), event()
    daemon = cast("Daemon", object())
    called = hooks(
        one=plugin(
            awaits=awaits,
            screen=lambda request: record("screen", request),
            authenticate=lambda request: record("authenticate", request, answer=principal),
            admit=lambda request, principal: record("admit", request, principal),
            resolve_user=lambda event, state: record("resolve_user", event, state, answer="u"),
            resolve_session=lambda event, state: record("resolve_session", event, state, answer=session),
            store_identity=lambda event, state: record("store_identity", event, state),
            enrich=lambda event, state: record("enrich", event, state),
            filter_event=lambda event: record("filter_event", event, answer="a robot"),
            event_dropped=lambda event, state: record("event_dropped", event, state),
            startup=lambda daemon: record("startup", daemon),
            shutdown=lambda: record("shutdown"),
        )
    )
    await called.startup(daemon)
    await called.screen(REQUEST)
    assert await called.authenticate(REQUEST) is principal
    await called.admit(REQUEST, principal)
    assert await called.resolve_user(subject, STATE) == "u"
    assert await called.resolve_session(subject, STATE) is session
    await called.store_identity(subject, STATE)
    await called.enrich(subject, STATE)
    assert await called.filter_event(subject) == "a robot"
    await called.event_dropped(subject, STATE)
    assert await called.shutdown() == []
    assert seen == [
        ("startup", (daemon,)),
        ("screen", (REQUEST,)),
        ("authenticate", (REQUEST,)),
        ("admit", (REQUEST, principal)),
        ("resolve_user", (subject, STATE)),
        ("resolve_session", (subject, STATE)),
        ("store_identity", (subject, STATE)),
        ("enrich", (subject, STATE)),
        ("filter_event", (subject,)),
        ("event_dropped", (subject, STATE)),
        ("shutdown", ()),
    ]


def test_check_identity_is_called_at_once_and_may_refuse() -> None:
    seen: list[object] = []
    subject = event()

    def look(event: Event) -> None:
        seen.append(event)

    def refuse(event: Event) -> None:
        raise BadRequest("no")

    hooks(one=plugin(check_identity=look), two=plugin(check_identity=look)).check_identity(subject)
    assert seen == [subject, subject]

    with pytest.raises(BadRequest):
        hooks(one=plugin(check_identity=refuse)).check_identity(subject)
    with pytest.raises(HookFailure, match="plugin one: check_identity failed"):
        hooks(one=plugin(check_identity=lambda event: 1 / 0)).check_identity(subject)
    with pytest.raises(ConfigError, match="plugin one: check_identity cannot be a coroutine function"):
        hooks(one=plugin(awaits=True, check_identity=refuse))


def test_prepare_goes_from_plugin_to_plugin_until_one_drops_the_event() -> None:
    seen: list[object] = []
    subject = event()

    def look(event: Event, request: Request) -> None:
        seen.append((event, request))

    called = hooks(
        one=plugin(prepare=look),
        two=plugin(prepare=lambda request: "" if request is REQUEST else None),  # a reason may be falsy
        late=plugin(prepare=look),
    )
    assert called.prepare is not None
    assert called.prepare(subject, REQUEST) == ""
    assert seen == [(subject, REQUEST)]
    assert hooks(one=plugin(prepare=lambda: None)).prepare(subject, REQUEST) is None  # type: ignore[misc]  # not None


def test_without_an_implementation_there_is_no_prepare_to_call() -> None:
    assert hooks(one=plugin(enrich=lambda event: None)).prepare is None


def test_prepare_does_not_count_as_altering_stored_events() -> None:
    assert not hooks(one=plugin(prepare=lambda event: "a robot")).alters_events


def test_prepare_may_refuse_and_its_failure_names_the_plugin() -> None:
    refused = BadRequest("no")
    prepare = hooks(one=plugin(prepare=raising(refused))).prepare
    assert prepare is not None
    with pytest.raises(BadRequest) as refusal:
        prepare(event(), REQUEST)
    assert refusal.value is refused
    prepare = hooks(one=plugin(prepare=lambda: None), two=plugin(prepare=lambda event: 1 / 0)).prepare
    assert prepare is not None
    with pytest.raises(HookFailure, match="plugin two: prepare failed"):
        prepare(event(), REQUEST)
    with pytest.raises(ConfigError, match="plugin one: prepare cannot be a coroutine function"):
        hooks(one=plugin(awaits=True, prepare=lambda event: None))


def returns_coroutine() -> object:
    """Returns a coroutine that nobody awaits."""
    return asyncio.sleep(0)


@pytest.mark.parametrize(
    "answers", [lambda event: event, lambda: False, returns_coroutine], ids=["event", "bool", "coroutine"]
)
def test_an_answer_of_prepare_that_is_not_a_text_is_a_failure_and_drops_nothing(answers: Callable[..., Any]) -> None:
    prepare = hooks(one=plugin(prepare=answers)).prepare
    assert prepare is not None
    with pytest.raises(HookFailure, match="plugin one: prepare failed") as failure:
        prepare(event(), REQUEST)
    assert "expected None or a text, the reason to drop the event; got a" in str(failure.value.__cause__)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("anonymous_id", value) for value in ("", "x" * 513, None, 7)],
        *[("message_id", value) for value in ("", "x" * 129, 7)],
        *[("user_id", value) for value in ("", True)],
        *[("session_id", value) for value in ("", "s-1", '"', "5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a1\u0661", 7)],
    ],
)
def test_an_invalid_id_is_a_failure_of_the_plugin_that_sets_it(field: str, value: Any) -> None:
    prepare = hooks(
        fine=plugin(prepare=lambda event: setattr(event, field, "5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a11")),
        wrong=plugin(prepare=lambda event: setattr(event, field, value)),
    ).prepare
    assert prepare is not None
    with pytest.raises(HookFailure, match="plugin wrong: prepare failed"):
        prepare(event(), REQUEST)


@pytest.mark.parametrize("awaits", [*product([False, True], repeat=3)])
async def test_plugins_are_called_one_after_the_other_in_their_order(awaits: tuple[bool, bool, bool]) -> None:
    order: list[str] = []

    def enriches(name: str) -> Callable[[Event], None]:
        return lambda event: order.append(name)

    called = hooks(**{
        name: plugin(awaits=is_async, enrich=enriches(name))
        for name, is_async in zip(["first", "second", "third"], awaits, strict=True)
    })  # fmt: skip
    await called.enrich(event(), STATE)
    assert order == ["first", "second", "third"]


@pytest.mark.parametrize("awaits", [*product([False, True], repeat=3)])
async def test_the_first_answer_counts_and_later_plugins_are_not_called(awaits: tuple[bool, bool, bool]) -> None:
    order: list[str] = []

    def answers(name: str, answer: str | None) -> Callable[[], str | None]:
        def resolve_user() -> str | None:
            order.append(name)
            return answer

        return resolve_user

    called = hooks(
        silent=plugin(awaits=awaits[0], resolve_user=answers("silent", None)),
        knows=plugin(awaits=awaits[1], resolve_user=answers("knows", "")),  # an answer may be falsy
        late=plugin(awaits=awaits[2], resolve_user=answers("late", "other")),
    )
    assert await called.resolve_user(event(), STATE) == ""
    assert order == ["silent", "knows"]


async def test_without_any_answer_the_result_is_none() -> None:
    called = hooks(silent=plugin(resolve_user=lambda: None))
    assert await called.resolve_user(event(), STATE) is None
    assert await called.filter_event(event()) is None


@BOTH
async def test_an_implementation_may_leave_out_arguments(awaits: bool) -> None:
    seen: list[object] = []
    subject = event()
    called = hooks(
        none=plugin(awaits=awaits, enrich=lambda: seen.append("none")),
        first=plugin(awaits=awaits, enrich=lambda event: seen.extend([event])),
        last=plugin(awaits=awaits, enrich=lambda state: seen.extend([state])),
        turned=plugin(awaits=awaits, enrich=lambda state, event: seen.append((state, event))),
    )
    await called.enrich(subject, STATE)
    assert seen == ["none", subject, STATE, (STATE, subject)]


def raising(error: Exception) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises


@BOTH
@pytest.mark.parametrize("error", [BadRequest("no"), Limited("slower", retry_after=3)], ids=["400", "429"])
async def test_a_refusal_reaches_the_caller_unchanged(awaits: bool, error: Refused) -> None:
    called = hooks(strict=plugin(awaits=awaits, enrich=raising(error), filter_event=raising(error)))
    with pytest.raises(Refused) as from_all:
        await called.enrich(event(), STATE)
    with pytest.raises(Refused) as from_first:
        await called.filter_event(event())
    assert from_all.value is from_first.value is error


@BOTH
async def test_other_exceptions_are_failures_that_name_the_plugin_and_end_the_chain(awaits: bool) -> None:
    cause = ZeroDivisionError("inside")
    later: list[str] = []
    called = hooks(
        broken=plugin(awaits=awaits, enrich=raising(cause), filter_event=raising(cause)),
        fine=plugin(enrich=lambda: later.append("enrich"), filter_event=lambda: later.append("filter_event")),
    )
    for hook, call in ("enrich", called.enrich(event(), STATE)), ("filter_event", called.filter_event(event())):
        with pytest.raises(HookFailure, match=rf"plugin broken: {hook} failed") as failure:
            await call
        assert failure.value.__cause__ is cause
    assert later == []


async def test_a_cancellation_is_not_a_failure_of_the_plugin() -> None:
    class Slow:
        @hookimpl
        async def enrich(self) -> None:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hooks(slow=Slow()).enrich(event(), STATE))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@BOTH
async def test_startup_may_refuse_the_configuration(awaits: bool) -> None:
    called = hooks(picky=plugin(awaits=awaits, startup=raising(ConfigError("plugins.picky.level: too high"))))
    with pytest.raises(ConfigError, match=r"plugins\.picky\.level: too high"):
        await called.startup(cast("Daemon", object()))


@BOTH
async def test_shutdown_calls_all_plugins_in_reverse_order_despite_exceptions(awaits: bool) -> None:
    order: list[str] = []
    cause = OSError("disk")

    def ends(name: str, error: Exception | None = None) -> Callable[[], None]:
        def shutdown() -> None:
            order.append(name)
            if error is not None:
                raise error

        return shutdown

    called = hooks(
        first=plugin(awaits=awaits, shutdown=ends("first")),
        second=plugin(awaits=awaits, shutdown=ends("second", cause)),
        third=plugin(awaits=awaits, shutdown=ends("third", Limited("also a refusal"))),
        fourth=plugin(awaits=awaits, shutdown=ends("fourth", ConfigError("or this"))),
    )
    failures = await called.shutdown()
    assert order == ["fourth", "third", "second", "first"]
    assert [str(failure) for failure in failures] == [
        f"plugin {name}: shutdown failed" for name in ("fourth", "third", "second")
    ]
    assert failures[-1].__cause__ is cause


@BOTH
@pytest.mark.parametrize("fails", [None, 0, 1, 2])
async def test_shutdown_is_called_for_plugins_that_have_started_or_have_no_startup(
    awaits: bool, fails: int | None
) -> None:
    order: list[str] = []

    def starts(number: int) -> Callable[[object], None]:
        def startup(daemon: object) -> None:
            order.append(f"up {number}")
            if number == fails:
                raise OSError("nobody listens")

        return startup

    def ends(name: object) -> Callable[[], None]:
        return lambda: order.append(f"down {name}")

    starters = {f"p{n}": plugin(awaits=awaits, startup=starts(n), shutdown=ends(n)) for n in range(3)}
    called = hooks(**starters, idle=plugin(awaits=awaits, shutdown=ends("idle")))
    if fails is None:
        await called.startup(cast("Daemon", object()))
    else:
        with pytest.raises(HookFailure, match=f"plugin p{fails}: startup failed"):
            await called.startup(cast("Daemon", object()))
    assert await called.shutdown() == []
    tried, started = (3, 3) if fails is None else (fails + 1, fails)
    ups, downs = [f"up {n}" for n in range(tried)], [f"down {n}" for n in reversed(range(started))]
    assert order == [*ups, "down idle", *downs]


@pytest.mark.parametrize("style", ["wrapper", "hookwrapper"])
def test_wrappers_are_refused(style: str) -> None:
    class Wraps:
        def enrich(self) -> Iterator[None]:
            yield

    pluggy.HookimplMarker(HOOK_NAMESPACE)(**{style: True})(Wraps.enrich)  # type: ignore[call-overload]  # either word
    with pytest.raises(ConfigError, match="plugin wraps: enrich cannot be a wrapper"):
        hooks(wraps=Wraps())


@pytest.mark.parametrize("missing", ["authenticate", "resolve_session"])
def test_a_daemon_that_could_accept_no_event_does_not_start(missing: str) -> None:
    made = pluggy.PluginManager(HOOK_NAMESPACE)
    made.add_hookspecs(hookspecs)
    if missing == "authenticate":
        made.register(plugin(resolve_session=lambda: None), "half")
    else:
        made.register(plugin(authenticate=lambda: None), "half")
    with pytest.raises(ConfigError, match=f"no plugin implements {missing}"):
        Hooks(made)


def test_registration_is_called_in_order() -> None:
    def offers(name: str) -> Callable[..., None]:
        return lambda register: register(name)

    names: list[str] = []
    made = manager(**{name: plugin(register_consumers=offers(name)) for name in ("first", "second")})
    register_all(made, "register_consumers", names.append)
    assert names == ["first", "second"]


def test_a_registration_that_raises_names_its_plugin() -> None:
    made = manager(broken=plugin(register_sinks=raising(ZeroDivisionError("inside"))))
    with pytest.raises(ConfigError, match=r"plugin broken: register_sinks failed: ZeroDivisionError\('inside'\)"):
        register_all(made, "register_sinks", print)
    made = manager(picky=plugin(register_sinks=raising(ConfigError("not twice"))))
    with pytest.raises(ConfigError, match="plugin picky: not twice"):
        register_all(made, "register_sinks", print)


def test_a_registration_cannot_be_a_coroutine_function() -> None:
    made = manager(odd=plugin(awaits=True, register_sinks=lambda: None))
    with pytest.raises(ConfigError, match="plugin odd: register_sinks cannot be a coroutine function"):
        register_all(made, "register_sinks", print)
