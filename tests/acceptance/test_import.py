"""`ingestd events import`: a move from one daemon to another, and the history of another system."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import INGESTD, PATIENCE, Daemon, Shop, run_ingestd
from tests.support.redis_shop import redis_shop

TENANT = ("--tenant", "shop")
STORES = pytest.mark.parametrize("store", ["sqlite", "redis"])
PLACES = pytest.mark.parametrize(
    ("store", "beside"),
    [("sqlite", True), ("sqlite", False), ("redis", True)],
    ids=["SQLite beside a daemon", "SQLite without a daemon", "Redis beside a daemon"],
)


def import_(shop: Shop, *arguments: object, code: int = 0, stdin: bytes = b"") -> Any:
    """The printed object of the command."""
    done = run_import(shop, *arguments, "--json", stdin=stdin)
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout) if done.stdout else None


def run_import(shop: Shop, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [INGESTD, "events", "import", *map(str, arguments), "--config", str(shop.config)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def lines_of(records: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def written(folder: Path, records: Sequence[Any], name: str = "lines.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(lines_of(records))
    return folder / name


def unmarked(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the marks of an import."""
    return {name: value for name, value in record.items() if name not in {"endpoint", "import"}}


def at(days: float, **later: float) -> str:
    """A time so many days ago, or `later`."""
    time = datetime.now(UTC).replace(microsecond=0) - timedelta(days=days) + timedelta(**later)
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def message(number: int, **members: Any) -> dict[str, Any]:
    """A message as Segment stores it."""
    return {
        "type": "track",
        "event": "Product Viewed",
        "messageId": f"message-{number}",
        "anonymousId": f"visitor-{number}",
        "timestamp": at(400),
        "receivedAt": at(400),
        "properties": {"product_id": f"p-{number}"},
        **members,
    }


@contextmanager
def shop_on(store: str, folder: Path, tables: dict[str, str] | None = None) -> Iterator[Shop]:
    folder.mkdir(exist_ok=True)
    if store == "redis":
        with redis_shop(folder, tables) as shop:
            yield shop
    elif store == "journal apart":
        yield Shop(folder, {"journal": 'url = "sqlite:journal.db"', **(tables or {})})
    else:
        yield Shop(folder, tables or {})


@contextmanager
def running(shop: Shop, *, beside: bool) -> Iterator[Daemon | None]:
    with ExitStack() as stack:
        yield stack.enter_context(shop.serve()) if beside else None


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records of a daemon of each type: an order with its attribution and refund, a forgotten person …"""
    shop = Shop(tmp_path_factory.mktemp("source"))
    with shop.serve() as daemon:

        def send(path: str, body: Any) -> None:
            assert daemon.post(path, body, shop.public.id).status == 200

        campaign = {"campaign": {"source": "news", "name": "Ä"}, "page": {"url": "https://shop.example/"}}
        send("/track", {"key": "Page View", "data": {"n": 1e300}, "anonymousId": "v-1", "context": campaign})
        send("/identify/public", {"anonymousId": "v-1", "userId": "ada", "traits": {"plan": [1, None]}})
        send("/track", {"key": "Order Completed", "anonymousId": "v-1", "data": {"order_id": "o-1", "total": 40}})
        send("/track", {"key": "Order Refunded", "anonymousId": "v-1", "data": {"order_id": "o-1", "total": 10}})
        send("/track", {"key": "Page View", "data": {}, "anonymousId": "v-2", "messageId": "m-2", "timestamp": [7]})
        body = {"key": "Cart Viewed", "anonymousId": "v-3", "data": {}, "dispatchId": "d", "extra": {"a": 1}, "b": {}}
        assert daemon.post_signed(body, shop.server).status == 200
        send("/track", {"key": "Page View", "data": {"name": "secret"}, "anonymousId": "bob"})
        wait_until(lambda: shop.is_done("attribution"))
    shop.command("forget", "--anonymous", "bob")
    records = shop.exported()
    types = {"event", "identify", "attribution", "attribution_reversal", "erasure"}
    assert {record["type"] for record in records} == types
    return records


@pytest.mark.parametrize(
    ("store", "beside"), [("sqlite", True), ("sqlite", False), ("redis", True), ("journal apart", True)]
)
def test_an_export_of_all_records_is_imported_once_and_exported_the_same(
    tmp_path: Path, moved: list[dict[str, Any]], store: str, *, beside: bool
) -> None:
    file = written(tmp_path / "files", moved)
    with shop_on(store, tmp_path / "target") as shop:
        before = import_(shop, file, "--dry-run")
        assert shop.stored() == []
        with running(shop, beside=beside):
            told = import_(shop, file)
            assert told == {**before, "dryRun": False}
            assert told["counts"] == {"imported": len(moved)}
            assert import_(shop, file)["counts"] == {"duplicate": len(moved)}
        with shop.serve():  # neither attribution nor anything else counts them a second time
            wait_until(lambda: len(shop.archived()) == len(moved))
        records = shop.exported()
        assert [unmarked(record) for record in records] == [unmarked(record) for record in moved]
        assert shop.archived() == records
        for record, first in zip(records, moved, strict=True):
            assert record.get("endpoint") == (None if first.get("endpoint") is None else "import")
            assert record["import"].get("endpoint") == first.get("endpoint")
            assert record["import"]["state"] is False
        again = written(tmp_path / "files", records, "again.jsonl")
        assert import_(shop, again)["counts"] == {"duplicate": len(moved)}
    with shop_on("sqlite", tmp_path / "third") as third:
        import_(third, again)
        assert [each["import"].get("endpoint") for each in third.exported()] == [each.get("endpoint") for each in moved]


@pytest.mark.parametrize(("store", "beside"), [("sqlite", False), ("redis", True)])
def test_messages_of_other_systems_keep_their_times_and_touch_no_state(
    tmp_path: Path, store: str, *, beside: bool
) -> None:
    campaign = {"campaign": {"source": "news"}}
    messages = [
        message(1, context=campaign, timestamp=at(400), originalTimestamp=at(399), receivedAt=at(400, seconds=1)),
        message(2, type="identify", userId="ada", traits={"plan": "pro"}),
        message(2, messageId="order", event="Order Completed", properties={"order_id": "o-1"}, context=campaign),
        message(3, type="page", name="Start", receivedAt=None, timestamp=at(3)),
        message(4, messageId=None, receivedAt=at(2), timestamp=None, sentAt=at(2), originalTimestamp=at(2, seconds=-9)),
        message(5, userId=17, anonymousId=None),
    ]
    with shop_on(store, tmp_path / "shop") as shop:
        file = written(tmp_path / "files", messages)
        with running(shop, beside=beside):
            assert import_(shop, file, *TENANT)["imported"] == {"event": 5, "identify": 1}
            assert import_(shop, file, *TENANT)["counts"] == {"duplicate": 6}
        records = shop.exported()
        assert [record["timestamp"] for record in records] == [
            messages[0]["timestamp"], messages[1]["timestamp"], messages[2]["timestamp"], messages[3]["timestamp"],
            messages[4]["originalTimestamp"], messages[5]["timestamp"],
        ]  # fmt: skip
        assert records[0]["receivedAt"] == messages[0]["receivedAt"]
        assert records[3]["receivedAt"] >= at(0, minutes=-1)  # an unknown time of receipt is the time of the import
        assert {record["endpoint"] for record in records} == {"import"}
        assert {record["import"]["endpoint"] for record in records} == {"segment"}
        assert {record["sessionId"] for record in records} == {None}
        assert [record["id"] for record in records] != sorted(record["id"] for record in records)  # ids of old times
        assert records[5]["userId"] == "17"
        with shop.serve() as daemon:
            view = {"key": "Page View", "anonymousId": "visitor-2", "data": {}}
            answer = daemon.post("/track", view, shop.public.id).json()
            assert answer["session"]["isNew"] is True
            order = {"key": "Order Completed", "anonymousId": "visitor-1", "data": {"order_id": "o-2"}}
            assert daemon.post("/track", order, shop.public.id).status == 200
            # The same message by another way is stored once.
            repeated = {**view, "messageId": "message-1"}
            assert daemon.post("/track", repeated, shop.public.id).status == 200
            wait_until(lambda: len(shop.exported("--type", "attribution")) == 1)
        (attribution,) = shop.exported("--type", "attribution")
        assert (attribution["orderId"], attribution["touchpoints"]) == ("o-2", [])
        assert shop.exported("--anonymous", "visitor-2")[-1]["userId"] is None
        assert len(shop.exported("--type", "event")) == 7


@STORES
def test_an_event_that_the_daemon_has_received_is_not_imported(tmp_path: Path, store: str) -> None:
    with shop_on(store, tmp_path / "shop") as shop:
        with shop.serve() as daemon:
            for number in (1, 2):
                view = {"key": "Page View", "anonymousId": "v", "data": {}, "messageId": f"message-{number}"}
                assert daemon.post("/track", view, shop.public.id).status == 200
            own = written(tmp_path / "files", shop.exported(), "own.jsonl")
            assert import_(shop, own)["counts"] == {"duplicate": 2}
            other = written(tmp_path / "files", [message(2), message(3)])
            assert import_(shop, other, *TENANT)["counts"] == {"duplicate": 1, "imported": 1}
        # A copy of the daemon that has lost its newest records gets them back, and no others.
        lost = shop.exported()
        with shop_on("sqlite", tmp_path / "restored") as restored:
            import_(restored, written(tmp_path / "files", lost[:1], "first.jsonl"))
            told = import_(restored, written(tmp_path / "files", lost, "all.jsonl"))
            assert told["counts"] == {"duplicate": 1, "imported": 2}


@pytest.mark.parametrize(("store", "beside"), [("sqlite", True), ("redis", True)])
def test_with_state_a_shop_goes_on_in_another_daemon_as_in_the_first(
    tmp_path: Path, moved: list[dict[str, Any]], store: str, *, beside: bool
) -> None:
    file = written(tmp_path / "files", moved)
    derived = [record for record in moved if record["type"].startswith("attribution")]
    with shop_on(store, tmp_path / "target") as shop:
        with running(shop, beside=beside):
            told = import_(shop, file, "--state")
            assert told["counts"] == {"derived": 2, "imported": len(moved) - 2}
        with shop.serve() as daemon:
            wait_until(lambda: len(shop.archived()) >= len(moved))
            view = {"key": "Page View", "anonymousId": "v-1", "data": {}}
            answer = daemon.post("/track", view, shop.public.id).json()
            session = next(record["sessionId"] for record in moved if record["anonymousId"] == "v-1")
            assert answer["session"] == {"sessionId": session, "isNew": False}
            cancel = {"key": "Order Cancelled", "anonymousId": "v-1", "data": {"order_id": "o-1"}}
            assert daemon.post("/track", cancel, shop.public.id).status == 200
            wait_until(lambda: len(shop.archived("attribution_reversal")) == 2)
        assert import_(shop, file, "--state")["counts"] == {"derived": 2, "duplicate": len(moved) - 2}
        # The derived records are equal, and so are their ids.
        ours = [record for record in shop.exported() if record["type"].startswith("attribution")]
        assert ours[:2] == derived
        assert ours[2]["value"]["total"] == 30
        assert shop.exported("--anonymous", "v-1")[-1]["userId"] == "ada"


def test_with_state_events_make_sessions_links_and_touchpoints_by_their_own_times(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    campaign = {"campaign": {"source": "news"}}

    def visit(number: int, minutes: float, **members: Any) -> dict[str, Any]:
        time = {"timestamp": at(300, minutes=minutes), "receivedAt": at(300, minutes=minutes)}
        return message(number, **{"anonymousId": "v", **time, **members})

    with shop.serve() as daemon:
        live = daemon.post("/track", {"key": "Page View", "anonymousId": "v", "data": {}}, shop.public.id).json()
        link = {"anonymousId": "w", "userId": "newer", "traits": {"plan": "new"}}
        assert daemon.post("/identify/public", link, shop.public.id).status == 200
        messages = [
            visit(1, 0, context=campaign), visit(2, 20), visit(3, 60), visit(4, 80),
            visit(5, 5),  # out of order
            visit(6, 81, type="identify", userId="ada"),
            visit(7, 90, event="Order Completed", properties={"order_id": "old"}),
            visit(8, 100, type="identify", userId="eve", anonymousId="w"),
        ]  # fmt: skip
        import_(shop, written(tmp_path / "files", messages), *TENANT, "--state")
        wait_until(lambda: shop.is_done("attribution"))
        again = daemon.post("/track", {"key": "Page View", "anonymousId": "v", "data": {}}, shop.public.id).json()
        for visitor in ("v", "w"):
            view: Any = {"key": "Page View", "anonymousId": visitor, "data": {}}
            assert daemon.post("/track", view, shop.public.id).status == 200
    imported = [record for record in shop.exported() if record.get("endpoint") == "import"]
    sessions = [record["sessionId"] for record in imported]
    assert sessions[0] == sessions[1] != sessions[2] == sessions[3] == sessions[5] == sessions[6]
    assert sessions[4] not in sessions[:4]
    assert [record["sessionIsNew"] for record in imported] == [True, False, True, False, True, False, False, True]
    assert again["session"] == {"sessionId": live["session"]["sessionId"], "isNew": False}
    assert imported[6]["userId"] == "ada"
    assert imported[7]["linked"] is False  # the live link is newer
    assert [record["userId"] for record in shop.exported("--type", "event")][-2:] == ["ada", "newer"]
    (attribution,) = shop.exported("--type", "attribution")
    assert attribution["touchpoint"]["source"] == "news"
    assert attribution["decidedAt"] == messages[6]["receivedAt"]
    assert "no orders" in shop.command("attribution", "report", "--since", "1d")
    assert "news" in shop.command("attribution", "report", "--since", "365d")


def test_a_forgotten_person_does_not_come_back_from_an_old_file(tmp_path: Path) -> None:
    with shop_on("sqlite", tmp_path / "shop") as shop:
        with shop.serve() as daemon:
            for visitor, user in (("phone", "ada"), ("tablet", "ada"), ("tablet", "bob"), ("lone", None)):
                link = {"anonymousId": visitor, "userId": user}
                assert daemon.post("/identify/public", link, shop.public.id).status == 200
        for person in (("--user", "ada"), ("--anonymous", "lone")):
            shop.command("forget", *person)
        old = [
            message(1, anonymousId="phone"), message(2, anonymousId="x", userId="ada"), message(3, anonymousId="lone"),
            message(4, anonymousId="lone", userId="eve"),
        ]  # fmt: skip
        kept = [
            message(5, anonymousId="tablet", userId="bob"), message(6, anonymousId="y", userId="eve"),
            message(7, anonymousId="phone", receivedAt=None, timestamp=at(0)),  # the person has come back
        ]  # fmt: skip
        told = import_(shop, written(tmp_path / "files", [*old, *kept]), *TENANT)
        assert told["counts"] == {"forgotten": len(old), "imported": len(kept)}
        assert {record["messageId"] for record in shop.exported("--type", "event")} == {
            each["messageId"] for each in kept
        }


# Faulty lines


def test_each_faulty_line_is_reported_with_its_place_and_the_others_are_imported(
    tmp_path: Path, moved: list[dict[str, Any]]
) -> None:
    shop = Shop(tmp_path)
    event, identify, attribution, erasure = (
        next(record for record in moved if record["type"] == type_)
        for type_ in ("event", "identify", "attribution", "erasure")
    )
    blank = next(record for record in moved if record.get("erased"))
    nested = b"[" * 300 + b"]" * 300
    faulty: list[tuple[Any, str, str]] = [
        (b"{", "", "the body is not JSON"),
        (b"17", "", "expected a JSON object, got number"),
        (b"\xff{}", "", "the body is not JSON"),
        (b'{"a": "\\ud800"}', "", "half of a surrogate pair"),
        (b'{"id": 1, "tenant": 2, "x": %s}' % nested, "", "nested more than 200"),
        (b'{"a": "%s"}' % (b"x" * 5_000_000), "", "longer than"),
        ({}, "/type", "expected track, page"),
        ({**event, "id": "17"}, "/id", "expected str matching regex"),
        ({**event, "id": 17}, "/id", "expected str, got int"),
        ({**event, "tenant": ""}, "/tenant", "length >= 1"),
        ({**event, "type": "evnt"}, "/type", "expected event, identify, attribution"),
        ({**event, "type": ["event"]}, "/type", "expected event, identify, attribution"),
        ({**event, "receivedAt": "noon"}, "/receivedAt", "expected an RFC 3339 time"),
        ({**event, "receivedAt": at(-1)}, "/receivedAt", "in the future"),
        ({**event, "timestamp": "1999-12-31T23:59:59Z"}, "/timestamp", "before the year 2000"),
        ({**event, "timestamp": at(0), "receivedAt": at(1)}, "/timestamp", "after receivedAt"),
        ({**event, "colour": "red"}, "/colour", "unknown field"),
        ({**event, "signed": "yes"}, "/signed", "expected bool"),
        ({**event, "traits": {}}, "/traits", "not a member of a record of the type event"),
        ({**event, "key": "Page Seen"}, "/key", "is not a supported event key"),
        ({**event, "key": None}, "/key", "required, but missing"),
        ({**event, "data": []}, "/data", "expected object"),
        ({**event, "key": "Product Viewed", "data": {"price": "1"}}, "/data/price", "expected number, got string"),
        ({**event, "anonymousId": None}, "/anonymousId", "required, but missing"),
        ({**event, "anonymousId": "x" * 513}, "/anonymousId", "at most 512 characters"),
        ({**event, "sessionId": "mine"}, "/sessionId", "of the form"),
        ({**event, "messageId": ""}, "/messageId", "at least 1"),
        ({**event, "context": {"page": {"url": 1}}}, "/context/page/url", "expected string"),
        ({**event, "import": {"state": 1}}, "/import/state", "expected bool"),
        ({**event, "erased": True}, "/erased", "still has ids or content"),
        ({**blank, "userId": "bob"}, "/erased", "still has ids or content"),
        ({**identify, "traits": []}, "/traits", "expected object"),
        ({**identify, "traits": {str(n): n for n in range(501)}}, "/traits", "at most 500 traits"),
        ({**identify, "key": "Page View"}, "/key", "not a member of a record of the type identify"),
        ({**attribution, "value": {}}, "/value/revenue", "missing required field"),
        ({**attribution, "credits": {"linear": [{"eventId": 1}]}}, "/credits", "expected str"),
        ({**attribution, "decidedAt": at(-1)}, "/decidedAt", "in the future"),
        ({**erasure, "anonymousIds": [1]}, "/anonymousIds/0", "expected str"),
        ({**erasure, "tenant": None}, "/tenant", "expected str"),
        (message(1, type="trak"), "/type", "expected track, page"),
        (message(2, event="Shoe Seen"), "/event", "is not a supported event key"),
        (message(3, properties={"price": "1"}), "/properties/price", "expected number"),
        (message(4, timestamp=None, receivedAt=None), "/timestamp", "required"),
        (message(5, timestamp="yesterday", receivedAt=None), "/timestamp", "required"),
        (message(6, timestamp=at(-2), receivedAt=None), "/timestamp", "in the future"),
        (message(7, timestamp="1970-01-01T00:00:00Z"), "/timestamp", "before the year 2000"),
        (message(8, receivedAt=1), "/receivedAt", "expected an RFC 3339 time"),
        (message(9, receivedAt=at(-2)), "/receivedAt", "in the future"),
        (message(10, properties={"query": "x" * 1_100_000}), "", "larger than 1048576 bytes"),
        (message(11, type="group", groupId=None), "/groupId", "expected the id"),
    ]
    content = b"\xef\xbb\xbf"
    for number, (line, _, _) in enumerate(faulty):
        content += (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\r\n\n"
        content += json.dumps(message(1000 + number)).encode() + b"\n"
    file, faults = tmp_path / "mixed.jsonl", tmp_path / "faults.jsonl"
    file.write_bytes(content)
    arguments = (file, *TENANT, "--errors", faults)
    dry = import_(shop, *arguments, "--dry-run", code=1)
    told = import_(shop, *arguments, code=1)
    assert told == {**dry, "dryRun": False}
    assert told["counts"]["imported"] == len(faulty)
    assert sum(told["counts"].values()) == told["lines"] == 2 * len(faulty)
    reports = [json.loads(line) for line in faults.read_bytes().splitlines()]
    assert [report["line"] for report in reports] == [3 * number + 1 for number in range(len(faulty))]
    for (line, pointer, reason), report in zip(faulty, reports, strict=True):
        assert report["file"] == str(file)
        found = [(error["pointer"], error["message"]) for error in report["errors"]] or [("", report["message"])]
        assert any(place == pointer and reason in text for place, text in found), (str(line)[:200], report)
    shown = run_import(shop, file, *TENANT)
    text = shown.stderr.decode()
    assert shown.returncode == 1
    assert f"{file}:{3 * 16 + 1}" not in text  # only the first ones are shown
    assert f"{file}:22: /id: expected str matching regex" in text
    assert text.splitlines()[-1].endswith(f"{len(faulty)} lines were not imported")
    assert "Traceback" not in text
    few = run_import(shop, file, *TENANT, "--max-errors", "3")
    assert few.returncode == 1
    assert "the rest was not read; see --max-errors" in few.stderr.decode()


def test_files_may_be_compressed_damaged_or_a_pipe(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    whole = gzip.compress(lines_of([message(1)])) + gzip.compress(lines_of([message(2)]))
    (tmp_path / "whole.gz").write_bytes(whole)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(lines_of([message(number) for number in range(3, 500)]))[:-300])
    assert import_(shop, tmp_path / "whole.gz", *TENANT)["counts"] == {"imported": 2}
    cut = run_import(shop, tmp_path / "cut.gz", tmp_path / "whole.gz", *TENANT, "--json")
    assert cut.returncode == 1
    counts = json.loads(cut.stdout)["counts"]
    assert counts["invalid"] == 1
    assert counts["duplicate"] == 2  # the next file is read
    assert counts["imported"] > 100
    piped = import_(shop, "-", *TENANT, stdin=gzip.compress(lines_of([message(600), message(1)])))
    assert piped["counts"] == {"imported": 1, "duplicate": 1}
    assert import_(shop, "-", *TENANT, stdin=b"")["counts"] == {}


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["nowhere.jsonl"], 1, "nowhere.jsonl: No such file"),
        ([".", *TENANT], 1, ".: Is a directory"),
        (["-", "-", *TENANT], 1, "can be given once only"),
        (["messages.jsonl"], 1, "say with --tenant whose messages these are"),
        (["messages.jsonl", "--format", "segmnt"], 1, "did you mean segment?"),
        (["messages.jsonl", "--format", "record"], 1, "1 lines were not imported"),
        (["messages.jsonl", *TENANT, "--errors", "nowhere/faults"], 1, "nowhere/faults: No such file"),
        (["messages.jsonl", *TENANT, "--max-errors", "0"], 2, "expected a whole number from 1"),
    ],
)
def test_a_wrong_command_line_imports_nothing(tmp_path: Path, arguments: list[str], code: int, reason: str) -> None:
    shop = Shop(tmp_path)
    written(tmp_path, [message(1)], "messages.jsonl")
    done = run_ingestd("events", "import", *arguments, config=shop.config, folder=tmp_path)
    assert done.returncode == code
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert shop.stored() == []


# Interruptions


@PLACES
def test_a_killed_import_goes_on_when_it_runs_again(tmp_path: Path, store: str, *, beside: bool) -> None:
    records = [message(number) for number in range(3000)]
    file = written(tmp_path / "files", records)
    command = [INGESTD, "events", "import", str(file), *TENANT]
    with shop_on(store, tmp_path / "shop") as shop, running(shop, beside=beside):
        for part in (1, 2):
            with subprocess.Popen([*command, "--config", str(shop.config)], stderr=subprocess.DEVNULL) as running_:
                wait_until(lambda part=part: len(shop.stored()) >= 500 * part)  # type: ignore[misc]  # a default
                running_.send_signal(signal.SIGKILL)
                running_.wait(PATIENCE)
        assert 1000 <= len(shop.stored()) < len(records)
        told = import_(shop, file, *TENANT)
        assert told["counts"]["imported"] + told["counts"]["duplicate"] == len(records)
        assert [record["messageId"] for record in shop.stored()] == [record["messageId"] for record in records]


def test_an_import_waits_while_the_journal_is_full(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'max_size = "1MiB"'})
    records = [message(number) for number in range(2600)]
    with shop.serve() as daemon:
        assert import_(shop, written(tmp_path, records), *TENANT)["counts"] == {"imported": len(records)}
        wait_until(lambda: len(shop.archived()) == len(records))
        daemon.read_log()
        assert not any("events are refused" in line for line in daemon.log)
