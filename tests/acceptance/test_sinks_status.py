"""`ingestd sinks status`, `pause` and `resume`, and commands with several daemons."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ingestd.api import times
from ingestd.api.events import Record
from tests.support.backends import sqlite_backend
from tests.support.clients import wait_until
from tests.support.journals import append
from tests.support.redis_shop import redis_shop
from tests.support.sink_desk import QUICK, Desk, delivered
from tests.support.told_sink import Told

pytestmark = pytest.mark.usefixtures("told_sink")

_HOLDER = "return cmsgpack.unpack(redis.call('HGET', KEYS[1], 'sink:crm')).holder"
"""A script for Redis: the daemon or command that has the cursor of the sink `crm`."""


def test_status_shows_the_progress_of_each_sink_to_people_and_machines(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tables={"plugins": ""})  # all plugins: attribution reads the journal too, but is no sink
    with desk.shop.serve() as daemon:
        desk.crm.tell(reject={2: "no"})
        delivered(desk, daemon, 1, 2, 3)
        archive, crm = map(json.loads, desk.run("status", "--json").splitlines())
        assert crm == {
            "sink": "crm", "type": "told", "state": "running", "position": 3, "began": 0, "delivered": 2, "filtered": 0,
            "pending": 0, "oldestPendingSeconds": 0, "deadLetters": 1, "givenUp": 1, "replayed": 0, "retried": 0,
            "discarded": 0, "lost": 0, "fullInSeconds": crm["fullInSeconds"], "orders": [], "lastError": None,
        }  # fmt: skip
        assert crm["fullInSeconds"] > 0
        assert (archive["sink"], archive["type"], archive["delivered"]) == ("archive", "jsonl", 3)
        head, *rows = desk.run("status").splitlines()
        assert re.split("  +", head) == [
            "SINK", "TYPE", "STATE", "DELIVERED", "FILTERED", "PENDING", "OLDEST", "DEAD", "REPLAYED", "FULL IN",
        ]  # fmt: skip
        assert [re.split("  +", row)[:-1] for row in rows] == [
            ["archive", "jsonl", "running", "3", "0", "0", "-", "0", "0"],
            ["crm", "told", "running", "2", "0", "0", "-", "1", "0"],
        ]
        assert len(desk.run("status", "crm").splitlines()) == 2
    later = desk.status()
    assert later == {**crm, "state": "waiting for a daemon", "fullInSeconds": later["fullInSeconds"]}


def test_status_shows_the_error_and_the_pending_records_of_a_sink(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        desk.crm.tell(fail="down\x1b[2J for repairs")
        desk.send(daemon, 1, 2)
        wait_until(lambda: desk.status()["state"] == "failing")
        told = desk.status()
        assert (told["pending"], told["delivered"], told["position"]) == (2, 0, 0)
        assert told["oldestPendingSeconds"] > 0
        assert told["lastError"]["reason"] == "down\x1b[2J for repairs"
        assert told["lastError"]["failures"] > 0
        assert told["lastError"]["since"] <= told["lastError"]["at"]
        page = desk.run("status")
        assert re.search(
            r"^crm: failed \d+ times in a row, from \S+Z to \S+Z:\n    down\ufffd\[2J for repairs$", page, re.MULTILINE
        )
    assert "failed" in desk.run("status")  # the error is shown after a stop too
    desk.crm.tell()
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 3)
        wait_until(lambda: desk.status()["lastError"] is None)
        assert desk.status()["state"] == "running"


def test_a_sink_that_was_removed_from_the_configuration_is_shown_and_takes_no_commands(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        desk.crm.tell(reject={1: "no"})
        delivered(desk, daemon, 1)
    desk.shop.config.write_text(desk.shop.config.read_text().replace("[sinks.crm]", "[sinks.erp]"))
    assert [line.split()[0] for line in desk.run("status").splitlines()] == ["SINK", "archive", "erp", "crm"]
    assert desk.status()["state"] == "not configured"
    assert desk.status()["type"] is None
    assert desk.dead() == [(1, "no")]
    for command in (["pause", "crm"], ["resume", "crm"], ["replay", "crm", "--from", "1"]):
        assert "the sink crm is not configured any more" in desk.refused(*command)
    assert "not configured any more" in desk.refused("dead-letters", "discard", "crm", "--all", "--yes")


@pytest.mark.parametrize(
    "command",
    [["status"], ["replay", "--from", "1"], ["dead-letters", "list"], ["dead-letters", "retry", "--all"], ["pause"]],
    ids=" ".join,
)
def test_an_unknown_name_is_an_error_with_the_nearest_known_one(tmp_path: Path, command: list[str]) -> None:
    desk = Desk(tmp_path)
    at = 2 if command[0] == "dead-letters" else 1
    assert "there is no sink 'crn'; did you mean crm?" in desk.refused(*command[:at], "crn", *command[at:])


def test_records_removed_before_delivery_are_shown_as_lost(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tables={"journal": 'max_size = "20kB"\non_full = "drop"'})
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1)
        assert desk.status()["lost"] == 0
        desk.crm.tell(fail="down")
        desk.send(daemon, *range(2, 60))
        wait_until(lambda: desk.status()["lost"] > 0)
        desk.crm.tell()
        wait_until(lambda: desk.status()["pending"] == 0)
        wait_until(lambda: desk.status()["lastError"] is None)
        told = desk.status()
        assert told["position"] - told["began"] == told["delivered"] + told["lost"] == 59
        header, row = desk.run("status", "crm").splitlines()
        assert (header.split()[-1], row.split()[-1]) == ("LOST", str(told["lost"]))


def test_status_predicts_when_the_journal_is_full(tmp_path: Path) -> None:
    """300 records of 200 bytes, 50 of them from the last five minutes. One sink has received 150 of them."""
    desk = Desk(tmp_path, tables={"journal": 'max_size = "100kB"'})
    now = times.now()

    def record(number: int, age: float) -> Record:
        body = json.dumps({"id": f"{number}", "type": "other"})
        return Record("other", now - round(age * 1000), f"{body[:-1]}{' ' * (200 - 32 - len(body))}}}".encode())

    async def fill() -> None:
        async with sqlite_backend(tmp_path) as backend:
            await backend.journal.ensure_cursor("sink:archive", "beginning")
            await append(backend, [record(number, 86_400 - number) for number in range(150)])
            await backend.journal.ensure_cursor("sink:crm", "now")
            await append(backend, [record(number, 8_000 - number) for number in range(100)])
            await append(backend, [record(number, 250 - 5 * number) for number in range(50)])

    asyncio.run(fill())
    rate = 50 * 200 / 300
    for name, held in (("archive", 300 * 200), ("crm", 150 * 200)):
        told = desk.told("status", name)
        assert told["fullInSeconds"] == pytest.approx((100_000 - held) / rate, rel=0.02)


def test_without_events_status_does_not_predict_a_full_journal(desk: Desk) -> None:
    assert desk.status()["fullInSeconds"] is None
    assert desk.run("status").splitlines()[-1].split()[-1] == "-"


# Pausing


def test_a_pause_takes_effect_within_a_second_and_outlives_restarts(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1)
        assert desk.run("pause", "crm").splitlines() == [
            "crm is paused, also after restarts, until ingestd sinks resume crm",
            "the journal keeps all records that the sink has not received, despite keep_for and keep_size",
        ]
        wait_until(lambda: daemon.metric('ingestd_sink_paused{sink="crm"}') == 1, 1.0)
        desk.send(daemon, 2, 3)
        wait_until(lambda: len(desk.shop.archived()) == 3)  # other sinks continue
        told = desk.status()
        assert (told["state"], told["pending"], desk.crm.numbers()) == ("paused", 2, [1])
        assert told["oldestPendingSeconds"] > 0
    with desk.shop.serve() as daemon:
        desk.send(daemon, 4)
        wait_until(lambda: len(desk.shop.archived()) == 4)
        assert desk.crm.numbers() == [1]
        assert desk.told("pause", "crm") == {"sink": "crm", "paused": True, "changed": False}
        assert desk.told("resume", "crm") == {"sink": "crm", "paused": False, "changed": True}
        wait_until(lambda: desk.crm.numbers() == [1, 2, 3, 4], 1.5)
        assert desk.run("resume", "crm") == "crm was not paused\n"


def test_a_sink_is_paused_and_resumed_without_a_daemon_too(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tables={"journal": 'max_size = "1GiB"\nwait_for_consumers = false\nkeep_for = "7d"'})
    assert desk.run("pause", "crm").splitlines()[1:] == [
        "the journal does not wait for the sink (wait_for_consumers = false): records can be removed undelivered",
        "once the journal holds 1.0 GiB (max_size), events are refused",
    ]
    assert desk.status()["state"] == "paused"
    with desk.shop.serve() as daemon:
        desk.send(daemon, 1)
        wait_until(lambda: len(desk.shop.archived()) == 1)
        assert desk.crm.numbers() == []
    assert desk.run("resume", "crm") == "crm continues where it stopped\n"
    with desk.shop.serve():
        wait_until(lambda: desk.crm.numbers() == [1])


# Several daemons


def test_on_redis_the_daemon_with_the_sink_runs_commands_or_else_the_command_itself(tmp_path: Path) -> None:
    crm = Told(tmp_path)
    with redis_shop(tmp_path, crm.options(QUICK)) as shop:

        def run(*arguments: str) -> Any:
            return json.loads(shop.command("sinks", *arguments, "crm", "--json"))

        def seen() -> list[int]:
            return sorted(crm.numbers())

        with shop.serve_with(2) as daemons:
            crm.tell(reject={2: "no", 3: "no"})
            for number in range(1, 5):
                body = {"key": "Page View", "anonymousId": f"v-{number}", "data": {"number": number}}
                assert daemons[number % 2].post("/track", body, shop.public.id).status == 200
            wait_until(lambda: run("status")["position"] == 4)
            assert run("status")["state"] == "running"
            crm.tell(reject={3: "still"})
            told = json.loads(shop.command("sinks", "dead-letters", "retry", "crm", "--all", "--json"))
            assert (told["taken"], [letter["reason"] for letter in told["dead"]]) == (1, ["still"])
            told = json.loads(shop.command("sinks", "replay", "crm", "--from", "1", "--to", "2", "--json"))
            assert (told["replayed"], told["done"]) == (2, True)
            assert seen() == [1, 1, 2, 2, 4]
            assert run("pause")["changed"]
            wait_until(lambda: sum(daemon.metric('ingestd_sink_paused{sink="crm"}') for daemon in daemons) == 1, 1.0)
            assert run("resume")["changed"]
        crm.tell()
        assert run("status")["state"] == "waiting for a daemon"
        told = json.loads(shop.command("sinks", "dead-letters", "retry", "crm", "1-2", "--json"))
        assert (told["taken"], told["dead"]) == (1, [])
        assert json.loads(shop.command("sinks", "replay", "crm", "--from", "1h", "--json"))["replayed"] == 4
        assert seen() == [1, 1, 1, 2, 2, 2, 3, 3, 4, 4]
        status = run("status")
        assert (status["deadLetters"], status["lost"], status["delivered"], status["position"]) == (0, 0, 2, 4)
        with shop.redis.client() as client:  # the command has released the cursor
            assert client.eval(_HOLDER, 1, "ingestd:cursors") == b""
        with shop.serve() as daemon:
            body = {"key": "Page View", "anonymousId": "v", "data": {"number": 5}}
            assert daemon.post("/track", body, shop.public.id).status == 200
            wait_until(lambda: 5 in crm.numbers())
