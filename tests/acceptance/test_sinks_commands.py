"""`ingestd sinks …` as they are run: beside a daemon and without one, for people and for machines."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ingestd import times
from ingestd.events import Record
from ingestd.journal import Extent, Outline
from ingestd.sink_commands.moments import first_since, parse_point
from tests.support.backends import sqlite_backend
from tests.support.clients import wait_until
from tests.support.daemon import INGESTD, PATIENCE, Daemon, Shop, run_ingestd
from tests.support.journals import append
from tests.support.redis_shop import redis_shop
from tests.support.told_sink import Told, told_installed

QUICK = 'timeout = "1s"\nretry = { initial = "10ms", max = "100ms" }'
BOTH = pytest.mark.parametrize("beside", [True, False], ids=["beside a daemon", "without a daemon"])


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with told_installed(tmp_path_factory.mktemp("site")):
        yield


@dataclass
class Desk:
    """A shop with a sink `crm` that does as it is told, and whoever gives it commands."""

    folder: Path
    batch: int = 500
    tables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.crm = Told(self.folder)
        batch = f'batch = {{ max_wait = "0s", max_events = {self.batch} }}'
        # A sink that fails is not worth waiting for when the daemon stops.
        tables = {"http": 'shutdown_timeout = "500ms"', **self.crm.options(QUICK, batch), **self.tables}
        self.shop = Shop(self.folder, tables)

    def send(self, daemon: Daemon, *numbers: int, visitor: str | None = None, key: str = "Page View") -> None:
        for number in numbers:
            body = {"key": key, "anonymousId": visitor or f"visitor-{number}", "data": {"number": number}}
            assert daemon.post("/track", body, self.shop.public.id).status == 200

    def run(self, *arguments: str) -> str:
        return self.shop.command("sinks", *arguments)

    def told(self, *arguments: str) -> Any:
        """What a command says with `--json`, which must be one object."""
        return json.loads(self.run(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1) -> str:
        done = run_ingestd("sinks", *arguments, config=self.shop.config)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr.splitlines()[-1]

    def status(self) -> Any:
        return self.told("status", "crm")

    def dead(self) -> list[tuple[int, str]]:
        rows = map(json.loads, self.run("dead-letters", "list", "crm", "--json").splitlines())
        return [(row["number"], row["reason"]) for row in rows]

    def begin(self, *arguments: str, **further: Any) -> subprocess.Popen[str]:
        command = [INGESTD, "sinks", *arguments, "--config", str(self.shop.config)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **further}
        return subprocess.Popen(command, text=True, **pipes)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def delivered(desk: Desk, daemon: Daemon, *numbers: int) -> None:
    """Send events with these numbers, and wait until the sink is done with them."""
    desk.send(daemon, *numbers)
    wait_until(lambda: daemon.metric('ingestd_consumer_pending{consumer="sink:crm"}') == 0)
    wait_until(lambda: daemon.metric('ingestd_consumer_pending{consumer="sink:archive"}') == 0)


# Status


def test_status_tells_how_far_each_sink_is_for_people_and_for_machines(desk: Desk) -> None:
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


def test_status_tells_what_a_sink_fails_of_and_what_waits_for_it(desk: Desk) -> None:
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
    assert "failed" in desk.run("status")  # whoever looks after a stop is told too
    desk.crm.tell()
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 3)
        wait_until(lambda: desk.status()["lastError"] is None)
        assert desk.status()["state"] == "running"


def test_a_sink_that_was_taken_out_of_the_configuration_is_told_of_and_gets_no_orders(desk: Desk) -> None:
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
def test_a_name_that_is_none_is_an_error_with_the_nearest_right_one(tmp_path: Path, command: list[str]) -> None:
    desk = Desk(tmp_path)
    at = 2 if command[0] == "dead-letters" else 1
    assert "there is no sink 'crn'; did you mean crm?" in desk.refused(*command[:at], "crn", *command[at:])


def test_what_was_removed_before_a_sink_had_it_is_told_as_lost(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tables={"journal": 'max_size = "20kB"\non_full = "drop"'})
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1)
        assert desk.status()["lost"] == 0
        desk.crm.tell(fail="down")
        desk.send(daemon, *range(2, 60))
        wait_until(lambda: desk.status()["lost"] > 0)
        desk.crm.tell()
        wait_until(lambda: desk.status()["pending"] == 0)
        told = desk.status()
        assert told["position"] - told["began"] == told["delivered"] + told["lost"] == 59
        header, row = desk.run("status", "crm").splitlines()
        assert (header.split()[-1], row.split()[-1]) == ("LOST", str(told["lost"]))


def test_status_foretells_when_the_journal_is_full(tmp_path: Path) -> None:
    """300 records of 200 bytes, 50 of them of the last five minutes; a sink that has had 150 holds the others."""
    desk = Desk(tmp_path, tables={"journal": 'max_size = "100kB"'})
    now = times.now()

    def record(number: int, age: float) -> Record:
        body = json.dumps({"id": f"{number}", "type": "other"})
        return Record("other", now - round(age * 1000), f"{body[:-1]}{' ' * (200 - 32 - len(body))}}}".encode())

    async def fill() -> None:
        async with sqlite_backend(tmp_path) as backend:
            await backend.journal.place("sink:archive", "beginning")
            await append(backend, [record(number, 86_400 - number) for number in range(150)])
            await backend.journal.place("sink:crm", "now")
            await append(backend, [record(number, 8_000 - number) for number in range(100)])
            await append(backend, [record(number, 250 - 5 * number) for number in range(50)])

    asyncio.run(fill())
    rate = 50 * 200 / 300
    for name, held in (("archive", 300 * 200), ("crm", 150 * 200)):
        told = desk.told("status", name)
        assert told["fullInSeconds"] == pytest.approx((100_000 - held) / rate, rel=0.02)


def test_without_events_no_journal_is_ever_full(desk: Desk) -> None:
    assert desk.status()["fullInSeconds"] is None
    assert desk.run("status").splitlines()[-1].split()[-1] == "-"


# Dead letters


@BOTH
def test_dead_letters_are_listed_and_shown_whole(desk: Desk, *, beside: bool) -> None:
    with ExitStack() as running:
        daemon = running.enter_context(desk.shop.serve())
        desk.crm.tell(reject={2: "too\x1b[2J long: " + "日本" * 100, 4: "no"})
        delivered(desk, daemon, 1, 2, 3, 4)
        if not beside:
            running.close()
        records = desk.shop.exported()
        first, second = map(json.loads, desk.run("dead-letters", "list", "crm", "--json").splitlines())
        assert first == {
            "sink": "crm", "number": 1, "at": first["at"], "type": "event", "key": "Page View", "id": records[1]["id"],
            "attempts": 1, "position": 2, "receivedAt": records[1]["receivedAt"],
            "reason": "too\x1b[2J long: " + "日本" * 100,
        }  # fmt: skip
        assert first["at"] >= first["receivedAt"]
        assert (second["number"], second["reason"]) == (2, "no")
        head, row, _ = desk.run("dead-letters", "list", "crm").splitlines()
        assert head.split() == ["NUMBER", "WHEN", "TYPE", "KEY", "ID", "ATTEMPTS", "REASON"]
        when = first["at"][:19] + "Z"
        assert row.split()[:7] == ["1", when, "event", "Page", "View", records[1]["id"], "1"]
        assert re.search(r"  too\ufffd\[2J long: [日本]+…$", row)
        shown = json.loads(desk.run("dead-letters", "show", "crm", "1", "--json"))
        assert shown == {**first, "record": records[1]}
        page = desk.run("dead-letters", "show", "crm", "1")
        assert json.loads(page.partition("\n\n")[2]) == records[1]
        assert "\x1b" not in page
        assert "crm has no dead letter 9" in desk.refused("dead-letters", "show", "crm", "9")
        assert desk.run("dead-letters", "list", "archive") == "archive has no dead letters\n"


@BOTH
def test_retrying_tells_what_the_sink_has_taken_and_what_is_still_dead(desk: Desk, *, beside: bool) -> None:
    with ExitStack() as running:
        daemon = running.enter_context(desk.shop.serve())
        desk.crm.tell(reject={number: f"no {number}" for number in range(2, 9)})
        delivered(desk, daemon, *range(1, 10))
        if not beside:
            running.close()
        desk.crm.tell(reject={4: "never", 8: "never ever"})
        told = desk.told("dead-letters", "retry", "crm", "1", "3-5")  # the events 2, and 4 to 6
        assert {name: told[name] for name in ("sink", "order", "letters", "done", "taken")} == {
            "sink": "crm", "order": 1, "letters": 4, "done": True, "taken": 3,
        }  # fmt: skip
        assert [(letter["number"], letter["reason"]) for letter in told["dead"]] == [(3, "never")]
        assert desk.crm.numbers() == [1, 9, 2, 5, 6]
        assert desk.dead() == [(2, "no 3"), (3, "never"), (6, "no 7"), (7, "no 8")]
        assert desk.run("dead-letters", "retry", "crm", "--all").splitlines() == [
            "2 of 4 taken by crm", "2 are still dead:", "  3  never", "  7  never ever",
        ]  # fmt: skip
        assert sorted(desk.crm.numbers()) == [1, 2, 3, 5, 6, 7, 9]
        status = desk.status()
        assert (status["deadLetters"], status["givenUp"], status["retried"]) == (2, 7, 5)
        desk.crm.tell()
        assert desk.run("dead-letters", "retry", "crm", "--all") == "2 of 2 taken by crm\n"
        assert desk.run("dead-letters", "retry", "crm", "--all") == "crm has no dead letters\n"
        assert desk.told("dead-letters", "retry", "crm", "--all")["letters"] == 0
        assert (desk.dead(), desk.status()["lost"]) == ([], 0)


@BOTH
def test_discarded_dead_letters_are_gone_and_nothing_is_written(desk: Desk, *, beside: bool) -> None:
    with ExitStack() as running:
        daemon = running.enter_context(desk.shop.serve())
        desk.crm.tell(reject=dict.fromkeys(range(2, 6), "no"))
        delivered(desk, daemon, *range(1, 6))
        if not beside:
            running.close()
        desk.crm.tell()
        assert "say --yes" in desk.refused("dead-letters", "discard", "crm", "1")
        assert desk.run("dead-letters", "discard", "crm", "1-2", "--yes") == "2 of 2 discarded\n"
        assert desk.dead() == [(3, "no"), (4, "no")]
        told = desk.told("dead-letters", "discard", "crm", "--all", "--yes")
        assert (told["letters"], told["discarded"], told["dead"]) == (2, 2, [])
        assert desk.dead() == []
        assert desk.crm.numbers() == [1]
        status = desk.status()
        assert (status["deadLetters"], status["discarded"], status["lost"]) == (0, 4, 0)


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_on_a_terminal_discarding_asks_first(desk: Desk, answer: str, left: int) -> None:
    with desk.shop.serve() as daemon:
        desk.crm.tell(reject={1: "no"})
        delivered(desk, daemon, 1)
    ours, theirs = pty.openpty()
    with desk.begin("dead-letters", "discard", "crm", "--all", stdin=theirs, stderr=theirs) as command:
        os.close(theirs)
        shown = read_until(ours, b"[y/N] ")
        assert "Discard 1 dead letters of crm for good?" in shown
        os.write(ours, answer.encode())
        assert command.wait(PATIENCE) == left
    os.close(ours)
    assert len(desk.dead()) == left


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["crm"], 2, "say which dead letters: their numbers, or --all"),
        (["crm", "1", "--all"], 2, "say which dead letters: their numbers, or --all"),
        (["crm", "0"], 2, "expected the number of a dead letter, or some such as 3-7"),
        (["crm", "7-3"], 2, "expected the number of a dead letter, or some such as 3-7"),
        (["crm", "7"], 1, "crm has no dead letter 7"),
        (["crm", "7-9"], 1, "crm has no dead letter 7 to 9"),
    ],
)
def test_which_dead_letters_must_be_said_and_right(desk: Desk, arguments: list[str], code: int, message: str) -> None:
    assert message in desk.refused("dead-letters", "discard", *arguments, "--yes", code=code)


# Replay


@BOTH
def test_a_replay_writes_again_what_is_asked_for_and_nothing_else(desk: Desk, *, beside: bool) -> None:
    with ExitStack() as running:
        daemon = running.enter_context(desk.shop.serve())
        delivered(desk, daemon, 1, 2)
        desk.send(daemon, 3, key="Product Viewed")
        delivered(desk, daemon, 4, 5)
        if not beside:
            running.close()
        first = [1, 2, 3, 4, 5]
        told = desk.told("replay", "crm", "--from", "2", "--to", "4")
        assert told == {
            "sink": "crm", "order": 1, "from": 2, "to": 4, "keys": None, "records": 3, "of": 5, "trimmed": False,
            "done": True, "replayed": 3, "deadLetters": 0,
        }  # fmt: skip
        assert desk.crm.numbers() == [*first, 2, 3, 4]
        printed = desk.run("replay", "crm", "--from", "1h", "--key", "Product Viewed", "--key", "Order Completed")
        assert printed.splitlines() == [
            "crm gets the records 1 to 5 again: 5 of 5 that are there, of these only Product Viewed, Order Completed",
            "1 records written to crm again",
        ]
        assert desk.crm.numbers() == [*first, 2, 3, 4, 3]
        at = desk.shop.exported()[3]["receivedAt"]
        assert desk.told("replay", "crm", "--from", at, "--to", at)["from"] == 4
        assert desk.told("replay", "crm", "--from", at.removesuffix("Z"))["from"] == 4  # UTC
        assert desk.crm.numbers() == [*first, 2, 3, 4, 3, 4, 4, 5]
        desk.crm.tell(reject={5: "not again"})
        told = desk.told("replay", "crm", "--from", "4", "--to", "900")
        assert (told["to"], told["replayed"], told["deadLetters"]) == (5, 1, 1)
        status = desk.status()
        assert (status["position"], status["delivered"], status["replayed"], status["lost"]) == (5, 5, 8, 0)
        assert desk.dead() == [(1, "not again")]
        assert [record["data"]["number"] for record in desk.shop.archived()] == first


def test_a_replay_of_nothing_is_an_error_that_says_why(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        assert "has had none of the records" in desk.refused("replay", "crm", "--from", "1")
        delivered(desk, daemon, 1, 2, 3)
        assert "up to 3 and none since" in desk.refused("replay", "crm", "--from", "4")
        tomorrow = times.format_time(times.now() + 86_400_000)
        assert "up to 3 and none since" in desk.refused("replay", "crm", "--from", tomorrow)
        assert "no records from 3 to 2" in desk.refused("replay", "crm", "--from", "3", "--to", "2")
        assert "expected a time of ISO 8601" in desk.refused("replay", "crm", "--from", "yesterday", code=2)
        desk.run("pause", "crm")
        assert "crm is paused" in desk.refused("replay", "crm", "--from", "1")
        assert desk.crm.numbers() == [1, 2, 3]


def test_a_replay_from_before_what_is_left_says_from_where_it_really_begins(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tables={"journal": 'keep_size = "3kB"'})
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, *range(1, 31))
        wait_until(lambda: desk.shop.exported()[0]["data"]["number"] > 20)
        oldest = desk.shop.exported()[0]
        number = oldest["data"]["number"]
        for start in ("1", "1d"):
            first, second, *_ = desk.run("replay", "crm", "--from", start).splitlines()
            assert first == (
                f"older records have been removed from the journal: it begins with {number}, received"
                f" {oldest['receivedAt']}"
            )
            assert second == f"crm gets the records {number} to 30 again: {31 - number} of {31 - number} that are there"
        told = desk.told("replay", "crm", "--from", "1")
        assert (told["trimmed"], told["from"], told["replayed"]) == (True, number, 31 - number)


def test_records_from_before_it_began_are_told_as_new_to_it(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1, 2)
    text = desk.shop.config.read_text()
    erp = Told(desk.folder, "erp")
    desk.shop.config.write_text(text + f"[sinks.erp]\n{erp.options()['sinks.erp']}\n")
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 3)
        wait_until(lambda: erp.numbers() == [3])
        printed = desk.run("replay", "erp", "--from", "1")
        assert "(it began behind 2: it gets those up to there for the first time)" in printed
        assert erp.numbers() == [3, 1, 2, 3]


def test_beside_a_daemon_ctrl_c_leaves_the_order_to_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, batch=1)
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, *range(1, 11))
        desk.crm.tell(seconds=0.1)
        with desk.begin("replay", "crm", "--from", "1") as command:
            wait_until(lambda: len(desk.crm.numbers()) > 12)
            desk.crm.tell(hang=True)
            assert command.stderr is not None
            assert re.fullmatch(r" \d0 % of 10 records looked at\n", command.stderr.readline())
            [order] = desk.status()["orders"]
            assert (order["number"], order["order"], order["of"]) == (1, "replay", 10)
            command.send_signal(signal.SIGINT)
            _, said = command.communicate(timeout=PATIENCE)
            assert command.returncode == 130
        assert "the order goes on in the daemon; ingestd sinks status crm tells how far it is" in said.splitlines()[-1]
        assert re.search(r"^crm: order 1, replay of 1 to 10: \d0 %$", desk.run("status"), re.MULTILINE)
        desk.crm.tell()
        wait_until(lambda: len(desk.crm.numbers()) >= 20)
        wait_until(lambda: desk.status()["orders"] == [])
        assert list(dict.fromkeys(desk.crm.numbers()[10:])) == [*range(1, 11)]


def test_without_a_daemon_the_command_ends_cleanly_and_what_is_left_is_done_by_the_next(tmp_path: Path) -> None:
    desk = Desk(tmp_path, batch=1)
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, *range(1, 11))
    desk.crm.tell(seconds=0.1)
    with desk.begin("replay", "crm", "--from", "1") as command:
        wait_until(lambda: len(desk.crm.numbers()) > 12)
        desk.crm.tell(hang=True)
        # What reads and writes the file works beside it; a daemon is told who has it.
        assert 0 < desk.status()["orders"][0]["done"] < 10
        refused = run_ingestd("serve", config=desk.shop.config)
        assert (refused.returncode, f"in use by process {command.pid}" in refused.stderr) == (78, True)
        command.terminate()
        _, said = command.communicate(timeout=PATIENCE)
        assert command.returncode == 143
    assert said.splitlines()[0] == "no daemon has the sink, so this command writes to it"
    assert "the order is kept" in said.splitlines()[-1]
    desk.crm.tell()
    with desk.shop.serve() as daemon:
        wait_until(lambda: len(desk.crm.numbers()) >= 20)
        delivered(desk, daemon, 11)
    status = desk.status()
    assert (status["delivered"], status["lost"], status["position"], status["orders"]) == (11, 0, 11, [])
    again = [number for number in desk.crm.numbers()[10:] if number != 11]
    assert list(dict.fromkeys(again)) == [*range(1, 11)]
    assert len(again) <= 11  # the record that was being written may come twice


def test_an_order_that_is_not_waited_for_is_done_by_the_next_daemon(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1, 2)
    assert "order 1 is given" in desk.run("replay", "crm", "--from", "1", "--no-wait").splitlines()[-1]
    told = desk.told("replay", "crm", "--from", "2", "--no-wait")
    assert (told["order"], told["done"], told["replayed"]) == (2, False, 0)
    assert desk.run("status").splitlines()[-2:] == [
        "crm: order 1, replay of 1 to 2: waits", "crm: order 2, replay of 2 to 2: waits",
    ]  # fmt: skip
    assert desk.crm.numbers() == [1, 2]
    with desk.shop.serve():
        wait_until(lambda: desk.crm.numbers() == [1, 2, 1, 2, 2])
        wait_until(lambda: desk.status()["orders"] == [])


def test_while_the_sink_fails_whoever_waits_is_told_why(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1)
        desk.crm.tell(fail="down for repairs")
        with desk.begin("replay", "crm", "--from", "1") as command:
            wait_until(lambda: desk.status()["state"] == "failing")
            assert command.stderr is not None
            assert command.stderr.readline() == "crm is failing, and tried again: down for repairs\n"
            desk.run("pause", "crm")
            assert command.stderr.readline() == "crm is paused: the order waits until it is resumed\n"
            desk.crm.tell()
            desk.run("resume", "crm")
            printed, _ = command.communicate(timeout=PATIENCE)
            assert printed.splitlines()[-1] == "1 records written to crm again"
            assert command.returncode == 0


def test_on_a_terminal_a_bar_shows_how_far_it_is(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1, 2)
        ours, theirs = pty.openpty()
        with desk.begin("replay", "crm", "--from", "1", stderr=theirs) as command:
            os.close(theirs)
            shown = read_until(ours, b"records looked at\r\n")
            assert command.wait(PATIENCE) == 0
        os.close(ours)
    assert "\r" + "█" * 30 + " 100 % of 2 records looked at" in shown


def read_until(descriptor: int, end: bytes) -> str:
    shown = b""
    while not shown.endswith(end):
        assert select.select([descriptor], [], [], PATIENCE)[0], shown
        shown += os.read(descriptor, 4096)
    return shown.decode()


# Pausing


def test_a_pause_takes_effect_within_a_second_and_outlives_restarts(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1)
        assert desk.run("pause", "crm").splitlines() == [
            "crm is paused, also beyond restarts, until ingestd sinks resume crm",
            "the journal keeps what it has not had, whatever keep_for and keep_size say",
        ]
        wait_until(lambda: daemon.metric('ingestd_sink_paused{sink="crm"}') == 1, 1.0)
        desk.send(daemon, 2, 3)
        wait_until(lambda: len(desk.shop.archived()) == 3)  # others go on
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
        "the journal does not wait for it (wait_for_consumers = false): what leaves it meanwhile is lost to it",
        "once the journal holds 1.0 GiB (max_size), events are refused",
    ]
    assert desk.status()["state"] == "paused"
    with desk.shop.serve() as daemon:
        desk.send(daemon, 1)
        wait_until(lambda: len(desk.shop.archived()) == 1)
        assert desk.crm.numbers() == []
    assert desk.run("resume", "crm") == "crm goes on where it was\n"
    with desk.shop.serve():
        wait_until(lambda: desk.crm.numbers() == [1])


# Several daemons


def test_on_redis_the_daemon_that_has_the_sink_does_it_and_without_any_the_command(tmp_path: Path) -> None:
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
        started = time.monotonic()
        with shop.serve() as daemon:  # the place was let go of
            body = {"key": "Page View", "anonymousId": "v", "data": {"number": 5}}
            assert daemon.post("/track", body, shop.public.id).status == 200
            wait_until(lambda: 5 in crm.numbers())
        assert time.monotonic() - started < 4.5


# Forgetting


@BOTH
def test_a_forgotten_person_is_in_no_dead_letter(tmp_path: Path, *, beside: bool) -> None:
    desk = Desk(tmp_path)
    with ExitStack() as running:
        daemon = running.enter_context(desk.shop.serve())
        desk.crm.tell(reject={1: "no", 2: "no", 4: "no"})
        desk.send(daemon, 1, 2, visitor="ada-visitor")
        desk.send(daemon, 3, 4, visitor="bob")
        wait_until(lambda: desk.status()["deadLetters"] == 3)
        if not beside:
            running.close()
        looked = json.loads(desk.shop.command("forget", "--anonymous", "ada-visitor", "--dry-run", "--json"))
        assert looked["counts"]["dead letters"] == 2
        told = json.loads(desk.shop.command("forget", "--anonymous", "ada-visitor", "--json"))
        assert told["counts"] == looked["counts"]
        assert "nothing is left" in desk.shop.command("forget", "--anonymous", "ada-visitor")
        desk.crm.tell()
        assert desk.told("dead-letters", "retry", "crm", "--all")["taken"] == 3
        records = desk.shop.exported()
        assert [record.get("erased", False) for record in records] == [True, True, False, False, False]
        dead = [records[0], records[1], records[3]]
        ids = [record["id"] for record in dead]
        assert [record for record in desk.crm.records() if record["id"] in ids] == dead

        def on_disk() -> bytes:
            return b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*.db*")))

        wait_until(lambda: on_disk().count(b"ada-visitor") == 1)  # in the erasure


def test_dead_letters_tell_of_a_person_of_whom_the_journal_knows_no_more(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tables={"journal": 'keep_size = "2kB"'})
    with desk.shop.serve() as daemon:
        desk.crm.tell(reject={1: "no"})
        body = {"anonymousId": "ada-visitor", "userId": "ada", "traits": {}}
        assert daemon.post("/identify/public", body, desk.shop.public.id).status == 200
        desk.send(daemon, 1, visitor="ada-visitor")
        delivered(desk, daemon, *range(2, 20))
        wait_until(lambda: desk.shop.exported()[0]["anonymousId"] != "ada-visitor")
        told = json.loads(desk.shop.command("forget", "--user", "ada", "--json"))
        assert (told["counts"]["dead letters"], told["counts"]["records"]) == (1, 0)
        shown = json.loads(desk.run("dead-letters", "show", "crm", "1", "--json"))["record"]
        assert (shown["erased"], shown["anonymousId"], shown["userId"]) == (True, None, None)
        again = json.loads(desk.shop.command("forget", "--user", "ada", "--json"))
        assert not sum(again["counts"].values())


# Times and positions


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-21T04:05:06.789Z", 1795233906789),
        ("2026-11-21T05:05:06.789+01:00", 1795233906789),
        ("2026-11-21T04:05:06.789", 1795233906789),
        ("2026-11-21 04:05", 1795233900000),
        ("2026-11-21", 1795219200000),
    ],
)
def test_a_time_is_of_iso_8601_and_in_utc_unless_it_says(text: str, at: int) -> None:
    assert parse_point(text) == (None, at)


def test_digits_are_a_position() -> None:
    assert parse_point("20261121").position == 20261121


class _Outlines:
    def __init__(self, first: int, ats: Sequence[int]) -> None:
        self.extent = Extent(first, first + len(ats) - 1, len(ats), 0, ats[0] if ats else None)
        self._ats = ats

    async def outlines(self, after: int, limit: int) -> Sequence[Outline]:
        start = max(0, after + 1 - self.extent.first)
        return [Outline(self.extent.first + start + i, at, 1) for i, at in enumerate(self._ats[start : start + limit])]


@pytest.mark.parametrize("ats", [[], [5], [5, 5, 5], [1, 3, 3, 8, 9], [*range(0, 200, 3)]])
@pytest.mark.parametrize("first", [1, 40])
async def test_the_first_record_since_a_time_is_found(ats: list[int], first: int) -> None:
    journal: Any = _Outlines(first, ats)
    for at in range(-1, 205):
        expected = next((first + index for index, each in enumerate(ats) if each >= at), first + len(ats))
        assert await first_since(journal, journal.extent, at) == expected
