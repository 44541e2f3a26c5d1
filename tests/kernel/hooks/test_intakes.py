"""The hook for intakes, with the example of examples/hooks: a wire format that has nothing in common with others."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tornado.httpclient import HTTPResponse

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError, Limited, Refused, Unavailable
from ingestd.api.events import Endpoint, Event, Principal, Request, Session
from ingestd.api.intake import MOST_MESSAGES, Intake, Message, Route, Translation
from ingestd.api.options import Size
from ingestd.config import HttpOptions
from ingestd.http.routes import Routes
from ingestd.http.settings import RequestSettings
from ingestd.plugins.segment import SegmentPlugin
from ingestd.validation.payload_schemas import PayloadSchemas
from tests.support.door import Door, MakeDoor

EXAMPLE = Path(__file__).parents[3] / "examples" / "hooks" / "register_intakes.py"


@pytest.fixture
def till() -> ModuleType:
    """The plugin of the example."""
    module = ModuleType("till")
    exec(compile(EXAMPLE.read_text(), "till", "exec", dont_inherit=True), vars(module))
    return module


class Plugin:
    """Registers one intake."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    @hookimpl
    def register_intakes(self, register: Callable[[Intake], None]) -> None:
        register(self._intake)


class Notes(Intake):
    """One note a request, as plain as a format can be: {"who": "v", "what": "Page View"}."""

    endpoint = Endpoint("notes", is_public=True)
    routes: Sequence[Route] = (
        Route("/notes"),
        Route("/notes/all", "all", batch="notes"),
        Route("/notes/{name}/info", method="GET", answer=lambda parts: json.dumps(parts).encode()),
    )
    request_headers = ("X-Note",)
    envelope = ("who",)
    credential_members = ("key",)
    max_messages = 3

    def credential(self, request: Request, body: Mapping[str, Any] | None) -> str | None:
        return None if body is None else body.get("key")

    def begin(
        self, request: Request, principal: Principal, envelope: Mapping[str, Any], keys: frozenset[str]
    ) -> Translation:
        return NotesTranslation(envelope)

    def problem(self, refused: Refused) -> Mapping[str, Any]:
        return {"sorry": refused.code}


class NotesTranslation(Translation):
    def __init__(self, envelope: Mapping[str, Any]) -> None:
        self._envelope = envelope

    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message | Sequence[Message]:
        if message.get("what") == "bug":
            raise KeyError("what")
        who = message.get("who", self._envelope.get("who"))
        body = {"key": message.get("what"), "data": {"raw": raw.decode(), "index": index}, "anonymousId": who}
        return Message("event", body)

    def answer(self, results: Sequence[Session | Refused]) -> bytes | Refused:
        if any(isinstance(each, Unavailable) for each in results):
            return next(each for each in results if isinstance(each, Unavailable))
        if len(results) == 3:
            raise RuntimeError("three is one too many for this answer")
        return json.dumps([each.code if isinstance(each, Refused) else "kept" for each in results]).encode()


def counted(door: Door, endpoint: str, outcome: str, key: str = "") -> float | None:
    labels = {"endpoint": endpoint, "key": key, "outcome": outcome}
    return door.metrics.registry.get_sample_value("ingestd_events_total", labels)


def note(what: str = "Page View", **members: Any) -> dict[str, Any]:
    return {"who": "visitor", "what": what, "key": "shop", **members}


async def post(door: Door, path: str, body: Any, **headers: str) -> HTTPResponse:
    return await door.fetch(path, json.dumps(body).encode(), headers=headers)


async def test_the_example_takes_the_sales_of_tills(door: MakeDoor, tmp_path: Path, till: ModuleType) -> None:
    sales = [
        {"till": "t-7", "receipt": "r-1", "cents": 4000},
        {"till": "t-7", "receipt": "r-1", "cents": 4000},
        {"till": "t-7", "receipt": "r-2", "cents": "much"},
        "no sale",
    ]  # fmt: skip
    async with door(tmp_path, till) as open_door:
        answer = await open_door.fetch(
            "/till/sales/", json.dumps({"sales": sales}).encode(), headers={"X-Till-Key": "shop"}
        )
        assert (answer.code, json.loads(answer.body)) == (200, {"taken": [True, True, False, False]})
        (record,) = await open_door.records()
        assert record["data"] == {"order_id": "r-1", "total": 40, "currency": "EUR"}
        assert (record["endpoint"], record["anonymousId"], record["messageId"]) == ("till", "t-7", "r-1")
        for outcome in ("accepted", "duplicate", "invalid"):
            assert counted(open_door, "till", outcome, "Order Completed") == 1
        assert counted(open_door, "till", "invalid") == 1


async def test_one_message_is_a_request_of_its_own_too(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Notes())) as open_door:
        for body in (json.dumps(note()).encode(), gzip.compress(json.dumps(note()).encode())):
            encoding = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f\x8b") else {}
            answer = await open_door.fetch("/notes", body, headers=encoding)
            assert (answer.code, answer.body) == (200, b'["kept"]')
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert [record["data"]["index"] for record in await open_door.records()] == [0, 0]


async def test_the_envelope_of_a_batch_is_read_within_its_bound(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Notes())) as open_door:
        messages = [{"what": "Page View"}, {"what": "Page View", "who": "another"}]
        assert (await post(open_door, "/notes/all", {"who": "one", "key": "shop", "notes": messages})).code == 200
        assert [record["anonymousId"] for record in await open_door.records()] == ["one", "another"]
        large = await post(open_door, "/notes/all", {"who": "x" * 9000, "key": "shop", "notes": messages})
        assert large.code == 413
        deep = b'{"who": ' + b"[" * 1500 + b"]" * 1500 + b', "key": "shop", "notes": []}'
        assert (await open_door.fetch("/notes/all", deep)).code == 400


async def test_a_batch_counts_as_if_each_message_had_the_envelope_itself(door: MakeDoor, tmp_path: Path) -> None:
    """Otherwise an intake could copy one text into thousands of records."""
    body = {"who": "x" * 400, "key": "shop", "notes": [{"what": "Page View"}] * 2}
    size = len(json.dumps(body)) + len(json.dumps({"who": body["who"]}, separators=(",", ":")))
    for most, status in ((size, 200), (size - 1, 413)):
        options = HttpOptions(max_batch_body=Size(most))
        async with door(tmp_path / str(status), Plugin(Notes()), options=options) as open_door:
            answer = await post(open_door, "/notes/all", body)
            assert answer.code == status
            if status == 413:
                detail = json.loads(answer.body)["detail"]
                assert detail.startswith("Each of the 2 messages gets the members of the batch: who. With them")
                assert detail.endswith(f" the batch has {size} bytes, and {most} are accepted.")
                assert await open_door.records() == []


async def test_problems_have_the_members_of_the_intake(door: MakeDoor, tmp_path: Path) -> None:
    options = HttpOptions(max_body=Size(500), max_batch_body=Size(5000))
    async with door(tmp_path, Plugin(Notes()), options=options) as open_door:
        answers = {
            "not_an_object": post(open_door, "/notes/all", []),
            "invalid_json": open_door.fetch("/notes/all", b"{"),
            "invalid_envelope": post(open_door, "/notes/all", {"notes": [1, 2, 3, 4]}),
            "method_not_allowed": open_door.fetch("/notes", method="PUT", body=b""),
            "too_large": open_door.fetch("/notes", b"x" * 600),
            "unsupported_encoding": open_door.fetch("/notes", b"x", headers={"Content-Encoding": "br"}),
        }  # fmt: skip
        for code, sent in answers.items():
            answer = await sent
            assert json.loads(answer.body)["sorry"] == json.loads(answer.body)["code"] == code
            assert answer.headers["Access-Control-Expose-Headers"]


async def test_a_message_beyond_the_limit_of_an_event_is_refused_alone(door: MakeDoor, tmp_path: Path) -> None:
    options = HttpOptions(max_body=Size(500), max_batch_body=Size(5000))
    async with door(tmp_path, Plugin(Notes()), options=options) as open_door:
        answer = await post(open_door, "/notes/all", {"key": "shop", "notes": [note(text="x" * 500), note()]})
        assert json.loads(answer.body) == ["too_large", "kept"]


@pytest.mark.logs("a request to notes failed")
async def test_a_bug_of_a_translation_fails_its_message_alone(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Notes())) as open_door:
        answer = await post(open_door, "/notes/all", {"key": "shop", "notes": [note("bug"), note()]})
        assert json.loads(answer.body) == ["internal_error", "kept"]
        assert counted(open_door, "notes", "failed") == 1


@pytest.mark.logs("a request to notes failed")
async def test_a_bug_of_an_answer_is_a_500_and_leaves_the_events_counted_once(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Notes())) as open_door:
        answer = await post(open_door, "/notes/all", {"key": "shop", "notes": [note()] * 3})
        assert answer.code == 500
        assert len(await open_door.records()) == 3
        assert counted(open_door, "notes", "accepted", "Page View") == 3


class Broken(Notes):
    """Has a bug wherever it can have one."""

    endpoint = Endpoint("broken", is_public=True)
    routes = (Route("/notes"), Route("/info", method="GET", answer=lambda parts: bytes(1 // 0)))

    def begin(
        self, request: Request, principal: Principal, envelope: Mapping[str, Any], keys: frozenset[str]
    ) -> Translation:
        raise KeyError("begin")

    def problem(self, refused: Refused) -> Mapping[str, Any]:
        raise KeyError("problem")


@pytest.mark.logs("a request to broken failed", "the intake broken cannot answer", "the intake broken cannot add")
async def test_a_broken_intake_answers_500(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Broken())) as open_door:
        for answer in (await post(open_door, "/notes", note()), await open_door.fetch("/info", method="GET")):
            assert (answer.code, json.loads(answer.body)["code"]) == (500, "internal_error")
        assert counted(open_door, "broken", "failed") == 1


class Baskets(Notes):
    """A message is a basket: an event for each of its items, and what is known of its owner."""

    endpoint = Endpoint("baskets", is_public=True)
    routes = (Route("/baskets"), Route("/baskets/all", batch="baskets"))
    schemas: Mapping[str, Mapping[str, Any]] = {"basket": {"properties": {"items": {"items": {"type": "string"}}}}}

    def begin(
        self, request: Request, principal: Principal, envelope: Mapping[str, Any], keys: frozenset[str]
    ) -> Translation:
        return BasketsTranslation(envelope)


class BasketsTranslation(NotesTranslation):
    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Sequence[Message]:
        self.check("basket", message)
        at = 1_790_000_000_000
        ids = {"anonymousId": "visitor"}
        events = [
            Message("event", {"key": what, "data": {"index": index}, **ids, "messageId": f"{index}-{what}"}, at)
            for what in message["items"]
        ]
        if "owner" in message:
            events.append(Message("identify", {"traits": {"name": message["owner"]}, **ids}, at))
        return events

    def answer(self, results: Sequence[Session | Refused]) -> bytes | Refused:
        return json.dumps([self._told(result) for result in results]).encode()

    def _told(self, result: Session | Refused) -> str:
        if isinstance(result, Refused):
            return " ".join([result.code, *(error.pointer for error in result.errors)])
        return "kept"


def basket(*items: Any, **members: Any) -> dict[str, Any]:
    return {"key": "shop", "items": items, **members}


async def test_a_message_may_become_several_events(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Baskets())) as open_door:
        for _ in range(2):  # it comes again: the events are duplicates, and the identify request has no id
            answer = await post(open_door, "/baskets", basket("Page View", "Cart Viewed", owner="Ada"))
            assert (answer.code, json.loads(answer.body)) == (200, ["kept"])
        records = await open_door.records()
        assert [record.get("key") for record in records] == ["Page View", "Cart Viewed", None, None]
        assert records[2]["traits"] == {"name": "Ada"}
        assert len({record["id"] for record in records}) == 4
        assert [record["id"] for record in records] == sorted(record["id"] for record in records)
        assert len({record["sessionId"] for record in records}) == 1
        for outcome in ("accepted", "duplicate"):
            assert counted(open_door, "baskets", outcome, "Cart Viewed") == 1


async def test_messages_of_a_batch_may_become_several_events_or_none(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Baskets())) as open_door:
        baskets = [basket("Page View", "no key", "Cart Viewed"), basket(), basket("Page View", "Cart Viewed")]
        answer = await post(open_door, "/baskets/all", {"key": "shop", "baskets": baskets})
        assert json.loads(answer.body) == ["unknown_key", "kept", "kept"]
        stored = [(record["key"], record["data"]["index"]) for record in await open_door.records()]
        assert stored == [("Page View", 0), ("Cart Viewed", 0), ("Page View", 2), ("Cart Viewed", 2)]
        assert counted(open_door, "baskets", "unknown_key") == 1
        assert counted(open_door, "baskets", "dropped") == 1


async def test_a_request_may_become_no_event(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Baskets())) as open_door:
        answer = await post(open_door, "/baskets", basket())
        assert (answer.code, json.loads(answer.body)) == (200, ["kept"])
        assert await open_door.records() == []
        assert counted(open_door, "baskets", "dropped") == 1


async def test_a_message_is_checked_as_it_was_sent(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Baskets())) as open_door:
        answer = await post(open_door, "/baskets", basket("Page View", 7, None))
        assert (answer.code, json.loads(answer.body)) == (200, ["invalid_data /items/1 /items/2"])
        assert await open_door.records() == []
        assert counted(open_door, "baskets", "invalid") == 1


@pytest.mark.logs("a request to baskets failed")
async def test_a_message_that_becomes_too_many_events_fails(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Baskets())) as open_door:
        baskets = [basket(*["Page View"] * (MOST_MESSAGES + 1)), basket("Page View")]
        answer = await post(open_door, "/baskets/all", {"key": "shop", "baskets": baskets})
        assert json.loads(answer.body) == ["internal_error", "kept"]
        assert len(await open_door.records()) == 1


def test_a_schema_of_an_intake_that_cannot_be_compiled_stops_the_start() -> None:
    intake = Baskets()
    intake.schemas = {"basket": {"type": "sack"}}
    with pytest.raises(ConfigError, match="the schema basket of the intake baskets cannot be compiled"):
        PayloadSchemas(intake)


class Full:
    """Has no room for one kind of event."""

    @hookimpl
    def enrich(self, event: Event) -> None:
        if event.key == "Cart Viewed":
            raise Unavailable("Full.", retry_after=7)


async def test_an_intake_may_have_a_whole_request_sent_again(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Plugin(Notes()), Full()) as open_door:
        answer = await post(open_door, "/notes/all", {"key": "shop", "notes": [note(), note("Cart Viewed")]})
        assert (answer.code, answer.headers["Retry-After"]) == (503, "7")
        assert json.loads(answer.body)["sorry"] == "unavailable"
        assert len(await open_door.records()) == 1


async def test_of_several_events_the_one_that_may_be_stored_later_decides(door: MakeDoor, tmp_path: Path) -> None:
    """Else the caller would hear of the fault alone, and the other event would be lost."""
    async with door(tmp_path, Plugin(Baskets()), Full()) as open_door:
        answer = await post(open_door, "/baskets", basket("no key", "Cart Viewed", "Page View"))
        assert (answer.code, json.loads(answer.body)) == (200, ["unavailable"])
        assert [record["key"] for record in await open_door.records()] == ["Page View"]


async def test_an_sdk_sends_again_what_could_not_be_stored_now(door: MakeDoor, tmp_path: Path) -> None:
    plugin = SegmentPlugin(SegmentPlugin.Options())
    async with door(tmp_path, plugin, Full()) as open_door:
        page = {"type": "track", "event": "Page View", "anonymousId": "v", "messageId": "1"}
        bad, cart = {"type": "track"}, {**page, "event": "Cart Viewed", "messageId": "2"}
        for _ in range(2):
            answer = await post(open_door, "/v1/batch", {"writeKey": "shop", "batch": [page, bad, cart]})
            assert (answer.code, answer.headers["Retry-After"]) == (503, "7")
            assert json.loads(answer.body)["error"] == "Full."
        assert [record["messageId"] for record in await open_door.records()] == ["1"]


class Strict:
    """Counts what it admits, and refuses addresses or keys when it is told to."""

    def __init__(self) -> None:
        self.screens = False
        self.seen: list[tuple[str | None, int]] = []

    @hookimpl
    def screen(self, request: Request) -> None:
        if self.screens:
            raise Limited("Later.", retry_after=3)

    @hookimpl
    def admit(self, request: Request, principal: Principal | None) -> None:
        self.seen.append((None if principal is None else principal.tenant, request.events))


async def test_admission_is_that_of_every_request(door: MakeDoor, tmp_path: Path) -> None:
    strict = Strict()
    async with door(tmp_path, Plugin(Notes()), strict) as open_door:
        await post(open_door, "/notes/all", {"key": "shop", "notes": [note(), note()]})
        await post(open_door, "/notes/all", {"key": "shop", "notes": []})
        await post(open_door, "/notes", note())
        await open_door.fetch("/notes/all", b"{")  # it has no credential that can be read, and this door takes everyone
        assert strict.seen == [("shop", 2), ("shop", 1), ("shop", 1), ("shop", 1)]
        strict.screens = True
        limited = await open_door.fetch("/notes/all", b"{")
        assert (limited.code, limited.headers["Retry-After"]) == (429, "3")
        assert len(strict.seen) == 4


class Blocked:
    """Holds every event until it is told to let them go."""

    def __init__(self) -> None:
        self.arrived, self.go = asyncio.Event(), asyncio.Event()

    @hookimpl
    async def enrich(self, event: Event) -> None:
        self.arrived.set()
        await self.go.wait()


async def test_a_request_in_progress_ends_with_the_routes_of_its_beginning(door: MakeDoor, tmp_path: Path) -> None:
    blocked = Blocked()
    async with door(tmp_path, Plugin(Notes()), blocked) as open_door:
        sending: Awaitable[HTTPResponse] = asyncio.ensure_future(post(open_door, "/notes", note()))
        await blocked.arrived.wait()
        open_door.ingest.settings = RequestSettings(open_door.ingest.settings.pipeline, HttpOptions())
        assert (await post(open_door, "/notes", note())).code == 404
        blocked.go.set()
        assert (await sending).code == 200


async def test_paths_without_messages_answer_anybody(door: MakeDoor, tmp_path: Path) -> None:
    strict = Strict()
    async with door(tmp_path, Plugin(Notes()), strict) as open_door:
        for path in ("/notes/a%20b/info", "/notes/a%20b/info/?x=y"):
            answer = await open_door.fetch(path, method="GET")
            assert (answer.code, json.loads(answer.body)) == (200, {"name": "a b"})
        head = await open_door.fetch("/notes/x/info", method="HEAD")
        assert (head.code, head.body) == (200, b"")
        wrong = await open_door.fetch("/notes/x/info", b"")
        assert (wrong.code, wrong.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
        assert (await open_door.fetch("/notes/x/y/info", method="GET")).code == 404
        preflight = await open_door.fetch("/notes", method="OPTIONS")
        assert preflight.headers["Access-Control-Allow-Headers"] == "authorization, content-type, x-note"
        own = await open_door.fetch("/api/v1/analytics/track", method="OPTIONS")
        assert own.headers["Access-Control-Allow-Headers"] == "authorization, content-type"
        assert strict.seen == []


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        (Route("notes"), "expected /name/name"),
        (Route("/notes/"), "expected /name/name"),
        (Route("/api/v1/analytics/more"), "not below /api/v1/analytics"),
        (Route("/notes/{name}"), "needs an `answer`"),
        (Route("/notes", method="GET"), "needs an `answer`"),
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_is_refused_at_the_start(route: Route, reason: str) -> None:
    intake = Notes()
    intake.routes = (route,)
    with pytest.raises(ConfigError, match=re.escape(reason)):
        Routes([intake])


def test_two_intakes_cannot_have_one_path() -> None:
    with pytest.raises(ConfigError, match="the path /notes of the intake notes: notes has it, too"):
        Routes([Notes(), Notes()])
