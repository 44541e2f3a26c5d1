"""Attribution's state survives SIGKILL, retention and a late start of the plugin. A forgotten person is removed."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.times import format_time, now
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.journeys import DAY, HOUR, IDENTIFY, MINUTE, SERVER, TRACK, Sender, attributions, derived

KILLS = 12
SLOWEST = 0.9  # the longest time in seconds from the first event of a round to its kill; attribution takes less
ORDERS = 6  # of a round

ATTRIBUTION, REVERSAL = "attribution", "attribution_reversal"
WITHOUT_ATTRIBUTION = 'enabled = ["keys", "hmac_auth", "identity", "session", "sqlite", "jsonl"]'

Request = tuple[str, dict[str, Any]]
"""An endpoint, and a body with a unique number."""


def is_order(body: dict[str, Any]) -> bool:
    return body.get("key") == "Order Completed"


def journeys(round_number: int, completed: int) -> list[Request]:
    """The requests of one round: two devices, a link that moves, six orders (one of them sent twice), refunds."""
    requests: list[Request] = []

    def send(endpoint: str, visitor: str, age: int = 0, **members: Any) -> None:
        number = f"{round_number}-{len(requests)}"
        timestamp = format_time(completed - age)
        body = {"anonymousId": f"{visitor}-{round_number}", "timestamp": timestamp, "number": number, **members}
        if endpoint != IDENTIFY:
            body = {"key": "Page View", "data": {}, **body}
        # Only orders may be stored twice after a lost answer. They must still be attributed once.
        if not is_order(body):
            body["messageId"] = number
        requests.append((endpoint, body))

    def order(
        visitor: str, name: str, key: str = "Order Completed", *, revenue: float = 40, user_id: str | None = None
    ) -> None:
        data = {"order_id": f"{name}-{round_number}", "revenue": revenue, "currency": "EUR"}
        send(SERVER, visitor, key=key, data=data, userId=user_id)

    ann, bob = f"ann-{round_number}", f"bob-{round_number}"
    send(SERVER, "phone", 5 * DAY, context={"campaign": {"source": "google"}})
    send(IDENTIFY, "phone", userId=ann)
    send(TRACK, "laptop", 2 * HOUR, context={"page": {"url": "https://shop.example/?utm_source=bing"}})
    send(IDENTIFY, "laptop", HOUR, dispatchId="mail-1", userId=ann)
    order("laptop", "both-devices")
    order("erp", "backend", user_id=ann)
    send(IDENTIFY, "phone", userId=bob)
    order("laptop", "one-device")
    order("laptop", "both-devices", "Order Refunded", revenue=10)
    order("phone", "moved")
    order("nobody", "direct")
    google = {"page": {"url": "https://shop.example/", "referrer": "https://www.google.com/"}}
    for _ in range(2):  # a page of one document repeats its referrer, also to a daemon that has just started
        send(TRACK, "searcher", HOUR, context=google)
    order("searcher", "searched")
    order("phone", "both-devices")
    order("laptop", "both-devices", "Order Cancelled")
    return requests


def send_all(daemon: Daemon, shop: Shop, requests: Sequence[Request]) -> int:
    """Sends the requests in order, and returns how many were answered before the daemon was killed."""
    for count, (endpoint, body) in enumerate(requests):
        try:
            if endpoint == SERVER:
                reply = daemon.post_signed(body, shop.server)
            else:
                reply = daemon.post(endpoint, body, shop.public.id)
        except (OSError, http.client.HTTPException):
            return count
        assert reply.status == 200, reply.body
    return len(requests)


def results(shop: Shop) -> list[dict[str, Any]]:
    """The attributions and reversals of the journal, without values that differ between runs.

    Events are named by their numbers, because the daemon chooses ids, sessions and times of receipt.
    """
    journal = shop.stored()
    numbers = {record["id"]: record["extra"]["number"] for record in journal if "extra" in record}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: plain(inner)
                for name, inner in value.items()
                if name not in {"decidedAt", "sessionId"} and (name, value.get("type")) != ("id", REVERSAL)
            }
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return numbers.get(value, value) if isinstance(value, str) else value

    found = [plain(record) for record in journal if record["type"] in {ATTRIBUTION, REVERSAL}]
    return sorted(found, key=lambda record: (record["type"], record["orderId"], record.get("cause", "")))


def attributed_after_a_kill(shop: Shop, folder: Path) -> int:
    """The number of attributed orders, read from a copy: only the next daemon may recover the file."""
    folder.mkdir()
    for path in shop.folder.glob("ingestd.db*"):
        shutil.copy(path, folder)
    with closing(sqlite3.connect(folder / "ingestd.db")) as connection:
        (count,) = connection.execute("SELECT count(*) FROM journal WHERE type = ?", (ATTRIBUTION,)).fetchone()
    return int(count)


def test_kills_before_and_during_attribution_change_nothing(tmp_path: Path) -> None:
    completed = now() - HOUR
    rounds = [journeys(number, completed) for number in range(KILLS)]

    (tmp_path / "calm").mkdir()
    calm = Shop(tmp_path / "calm")
    with calm.serve() as daemon:
        for requests in rounds:
            assert send_all(daemon, calm, requests) == len(requests)
        wait_until(lambda: len(derived(calm, REVERSAL)) == 2 * KILLS)
    expected = results(calm)
    assert Counter(record["type"] for record in expected) == {ATTRIBUTION: ORDERS * KILLS, REVERSAL: 2 * KILLS}

    (tmp_path / "killed").mkdir()
    shop = Shop(tmp_path / "killed")
    left: list[Request] = []
    answered: set[str] = set()
    behind = []
    for number, requests in enumerate(rounds):
        left += requests
        with Daemon(shop.config) as daemon:
            if number % 2:  # right after the answer to an order
                orders = [index for index, (_, body) in enumerate(left) if is_order(body)]
                count = send_all(daemon, shop, left[: orders[number // 2 % ORDERS] + 1])
                os.kill(daemon.pid, signal.SIGKILL)
            else:  # at any time between the answers and the end of attribution
                kill = threading.Timer(SLOWEST * number / (KILLS - 1), os.kill, (daemon.pid, signal.SIGKILL))
                kill.start()
                count = send_all(daemon, shop, left)
                kill.join()
            daemon.wait()
        answered |= {body["data"]["order_id"] for _, body in left[:count] if is_order(body)}
        left = left[count:]
        behind.append(len(answered) - attributed_after_a_kill(shop, tmp_path / f"copy-{number}"))
    with shop.serve() as daemon:
        assert send_all(daemon, shop, left) == len(left)
        wait_until(lambda: {record["orderId"] for record in derived(shop)} == {each["orderId"] for each in expected})
    assert results(shop) == expected
    assert sum(orders > 0 for orders in behind) >= 3, "hardly a kill came between an answer and its attribution"
    # The sink may have received some records twice, but each order has only one attribution.
    delivered = {json.dumps(record, sort_keys=True) for record in derived(shop)}
    assert len(delivered) == ORDERS * KILLS


@pytest.mark.parametrize("kept", ['keep_for = "300ms"', 'keep_size = "4kB"'])
def test_decisions_outlast_the_journal(tmp_path: Path, kept: str) -> None:
    shop = Shop(tmp_path, {"journal": kept})

    def forgotten_by_the_journal(daemon: Daemon) -> None:
        """Waits until the present records have been removed and unrelated events have replaced them."""
        before = {record["id"] for record in shop.stored()}
        for number in range(30):
            sender.send(TRACK, f"passer-by {number}")
        wait_until(lambda: not before & {record["id"] for record in shop.stored()})

    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        touch = sender.touch("visitor", 2 * HOUR, "google")
        sender.link("visitor", "ann")
        forgotten_by_the_journal(daemon)
        # Attribution keeps touches and links itself.
        sender.send(SERVER, "erp", key="Order Completed", userId="ann", data={"order_id": "o-1", "revenue": 40})
        attribution = attributions(shop, ["o-1"])["o-1"]
        forgotten_by_the_journal(daemon)
        assert shop.exported("--type", ATTRIBUTION) == []
    assert attribution["touchpoint"]["eventId"] == touch
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        sender.touch("visitor", MINUTE, "bing")
        sender.order("visitor", "o-1", revenue=40)
        sender.order("erp", "o-1", "Order Refunded", revenue=15)
        wait_until(lambda: len(derived(shop, REVERSAL)) == 1)
        forgotten_by_the_journal(daemon)
        # Amounts that have been reversed are remembered too.
        sender.order("erp", "o-1", "Order Cancelled")
        wait_until(lambda: len(derived(shop, REVERSAL)) == 2)
        assert daemon.metric('ingestd_attribution_orders_total{result="repeated"}') == 1
    assert derived(shop) == [attribution]
    assert [(each["attributionId"], each["value"]["revenue"], each["credits"]) for each in derived(shop, REVERSAL)] == [
        (attribution["id"], 15, attribution["credits"]),
        (attribution["id"], 25, attribution["credits"]),
    ]


def test_attribution_that_is_enabled_late_starts_at_the_beginning_of_the_journal(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins": WITHOUT_ATTRIBUTION})
    with shop.serve() as daemon:
        sender = Sender(shop, daemon)
        touch = sender.touch("phone", 2 * HOUR, "google")
        sender.link("phone", "ann")
        sender.send(SERVER, "erp", key="Order Completed", userId="ann", data={"order_id": "o-1", "revenue": 40})
        sender.order("erp", "o-1", "Order Refunded")
        wait_until(lambda: len(shop.archived()) == 4)
        assert "ingestd_attribution" not in daemon.ops("/metrics").body.decode()
        assert 'consumer="attribution"' not in daemon.ops("/metrics").body.decode()
    past = shop.stored()
    assert [record["type"] for record in past] == ["event", "identify", "event", "event"]
    assert run_ingestd("attribution", "show", "o-1", config=shop.config).returncode == 2

    shop.config.write_text(shop.config.read_text().replace('"session",', '"session", "attribution",'))
    with shop.serve() as daemon:
        record = attributions(shop, ["o-1"])["o-1"]
        sender = Sender(shop, daemon)
        sender.order("phone", "o-2")
        assert attributions(shop, ["o-2"])["o-2"]["touchpoint"]["eventId"] == touch
    assert record["touchpoint"]["eventId"] == touch
    # The result is the same as if it had been enabled from the start.
    assert record["decidedAt"] == past[2]["receivedAt"]
    [reversal] = derived(shop, REVERSAL)
    assert (reversal["cause"], reversal["value"]["revenue"]) == (past[3]["id"], 40)
    assert shop.stored()[:4] == past


def contents(database: Path) -> dict[str, str]:
    """The content of each table as text, without the erasures in the journal."""
    with closing(sqlite3.connect(database)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: "\n".join(
                " ".join(each.decode() if isinstance(each, bytes) else str(each) for each in row)
                for row in connection.execute(f"SELECT * FROM {name}")
                if "erasure" not in row
            )
            for name in names
        }


@pytest.mark.parametrize("is_attributed", [True, False], ids=["attributed", "not yet attributed"])
@pytest.mark.parametrize("whom", ["user", "visitor"])
def test_a_person_is_forgotten(tmp_path: Path, whom: str, *, is_attributed: bool) -> None:
    shop = Shop(tmp_path, {"plugins": ""})
    forget = ("--user", "zoe-user") if whom == "user" else ("--anonymous", "zoe-phone")
    devices = {"zoe-phone", "zoe-laptop"} if whom == "user" else {"zoe-phone"}
    before: dict[str, dict[str, Any]] = {}
    with Daemon(shop.config) as daemon:
        sender = Sender(shop, daemon)
        sender.touch("zoe-phone", 3 * HOUR, "google", dispatchId="zoe-mail")
        wait_until(lambda: shop.is_done("attribution"))
        daemon.kill()
    config = shop.config.read_text()
    if not is_attributed:  # attribution cannot have read the rest, however fast it is
        shop.config.write_text(config.replace("[plugins]", f"[plugins]\n{WITHOUT_ATTRIBUTION}"))
    with Daemon(shop.config) as daemon:
        sender = Sender(shop, daemon)
        sender.order("zoe-phone", "o-unlinked", revenue=1)
        for device in ("zoe-phone", "zoe-laptop"):
            sender.link(device, "zoe-user")
        search = sender.touch("zoe-laptop", 2 * HOUR, "bing")
        sender.order("zoe-phone", "o-phone", revenue=2)
        sender.order("zoe-laptop", "o-laptop", revenue=3)
        sender.touch("else", HOUR, "yahoo")
        if is_attributed:
            before = attributions(shop, ["o-unlinked", "o-phone", "o-laptop"])
        daemon.kill()
    shop.config.write_text(config)
    sessions = {event["sessionId"] for event in shop.exported("--type", "event") if event["anonymousId"] in devices}
    private = ["zoe" if whom == "user" else "zoe-phone", "zoe-mail", *sessions]
    if not is_attributed:
        assert shop.exported("--type", ATTRIBUTION) == []
        shop.command("forget", *forget)

    with shop.serve() as daemon:
        if is_attributed:
            shop.command("forget", *forget)
        sender = Sender(shop, daemon)
        # When later records have been attributed, the erasure has been processed.
        sender.order("else", "o-else")
        assert attributions(shop, ["o-else"])["o-else"]["touchpoint"]["source"] == "yahoo"
        left = {table: [text for text in private if text in rows] for table, rows in contents(shop.database).items()}
        assert not any(left.values()), left
        # Amounts and campaigns stay.
        after = {each["orderId"]: each for each in shop.exported("--type", ATTRIBUTION)}
        for order_id, record in before.items():
            assert after[order_id]["value"] == record["value"]
            assert [touch["source"] for touch in after[order_id]["touchpoints"]] == [
                touch["source"] for touch in record["touchpoints"]
            ]
            assert after[order_id]["credits"] == record["credits"]

        for device in ("phone", "laptop"):
            sender.order(f"zoe-{device}", f"o-later-{device}")
        later = attributions(shop, ["o-later-phone", "o-later-laptop"])
        assert (later["o-later-phone"]["userId"], later["o-later-phone"]["touchpoints"]) == (None, [])
        assert later["o-later-phone"]["ignored"] == []
        # The user stays if only a visitor was forgotten.
        found = later["o-later-laptop"]
        assert (found["userId"], [touch["eventId"] for touch in found["touchpoints"]]) == (
            (None, []) if whom == "user" else ("zoe-user", [search])
        )
