"""`ingestd events import`: a move from one daemon to another, and the history of another system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Shop
from tests.support.imports import TENANT, at, import_, message, running, shop_on, written

STORES = pytest.mark.parametrize("store", ["sqlite", "redis"])


def unmarked(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the marks of an import."""
    return {name: value for name, value in record.items() if name not in {"endpoint", "import"}}


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
        report = third.command("attribution", "report", "--since", "1h", "--by", "source,landing", "--json")
        (row,) = [row for row in map(json.loads, report.splitlines()) if row["source"] == "news"]
        assert (row["landing"], row["sessions"], row["orders"], row["net"]) == ("/", 1, 1, 30)


@pytest.mark.parametrize(("store", "beside"), [("sqlite", False), ("redis", True)])
def test_messages_of_other_systems_keep_their_times_and_touch_no_state(
    tmp_path: Path, store: str, *, beside: bool
) -> None:
    campaign = {"campaign": {"source": "news"}}
    messages = [
        message(1, context=campaign, timestamp=at(400), originalTimestamp=at(399), receivedAt=at(400, seconds=1)),
        message(2, type="identify", userId="ada", traits={"plan": "pro"}),
        message(
            2,
            messageId="order",
            event="Order Completed",
            properties={"order_id": "o-1", "total": "9.90"},
            context=campaign,
        ),
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
        assert records[2]["data"] == {"order_id": "o-1", "total": 9.9}
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
    imported.sort(key=lambda record: str(record["messageId"]))
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
    assert "news" not in shop.command("attribution", "report", "--since", "1d")
    assert "news" in shop.command("attribution", "report", "--since", "365d")


@pytest.mark.parametrize(("store", "beside"), [("sqlite", True), ("redis", True), ("journal apart", False)])
def test_state_can_be_made_later(tmp_path: Path, store: str, *, beside: bool) -> None:
    campaign = {"campaign": {"source": "news"}}
    web = [message(number, context=campaign, timestamp=at(9), receivedAt=at(9)) for number in range(300)]
    orders = [
        message(number, messageId=f"order-{number}", event="Order Completed", properties={"order_id": f"o-{number}"},
                timestamp=at(8), receivedAt=at(8))
        for number in range(300)
    ]  # fmt: skip
    files = written(tmp_path / "a", orders), written(tmp_path / "b", web)
    with shop_on(store, tmp_path / "shop") as shop:
        with running(shop, beside=beside):
            told = import_(shop, *files, *TENANT)
            assert (told["ordersNotAttributed"], told["eventsWithoutSession"]) == (300, 600)
            assert import_(shop, *files, *files, *TENANT)["ordersNotAttributed"] == 300
        with running(shop, beside=beside):
            told = import_(shop, *files, *TENANT, "--state")
            assert told["counts"] == {"completed": 600}
            assert (told["ordersNotAttributed"], told["eventsWithoutSession"]) == (0, 0)
            assert import_(shop, *files, *TENANT, "--state")["counts"] == {"duplicate": 600}
        with shop.serve():
            wait_until(lambda: len(shop.archived("attribution")) == 300)
        records = shop.exported()
        assert len(records) == 900
        assert all(record["sessionId"] for record in records if record["type"] == "event")
        sources = {record["touchpoint"]["source"] for record in records if record["type"] == "attribution"}
        assert sources == {"news"}


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
