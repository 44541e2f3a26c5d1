"""`ingestd sinks replay` with a daemon and without one, interrupted, and with and without waiting."""

from __future__ import annotations

import os
import pty
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from ingestd.api import times
from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE, run_ingestd
from tests.support.sink_desk import BOTH, Desk, delivered, read_until
from tests.support.told_sink import Told

pytestmark = pytest.mark.usefixtures("told_sink")


@BOTH
def test_a_replay_writes_exactly_the_requested_records_again(desk: Desk, *, beside: bool) -> None:
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
            "crm gets the records 1 to 5 again: 5 of 5 in the journal, only the keys Product Viewed, Order Completed",
            "1 records written to crm again",
        ]
        assert desk.crm.numbers() == [*first, 2, 3, 4, 3]
        at = desk.shop.stored()[3]["receivedAt"]
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


def test_a_replay_without_records_is_an_error_with_its_reason(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        assert "has received none of the records" in desk.refused("replay", "crm", "--from", "1")
        delivered(desk, daemon, 1, 2, 3)
        assert "has only received the records up to 3" in desk.refused("replay", "crm", "--from", "4")
        tomorrow = times.format_time(times.now() + 86_400_000)
        assert "has only received the records up to 3" in desk.refused("replay", "crm", "--from", tomorrow)
        assert "no records from 3 to 2" in desk.refused("replay", "crm", "--from", "3", "--to", "2")
        assert "expected a time of ISO 8601" in desk.refused("replay", "crm", "--from", "yesterday", code=2)
        desk.run("pause", "crm")
        assert "crm is paused" in desk.refused("replay", "crm", "--from", "1")
        assert desk.crm.numbers() == [1, 2, 3]


def test_a_replay_from_removed_records_reports_its_real_start(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tables={"journal": 'keep_size = "3kB"'})
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, *range(1, 31))
        wait_until(lambda: desk.shop.stored()[0]["data"]["number"] > 20)
        for start in ("1", "1d"):
            oldest, told = None, ""
            while oldest is None or desk.shop.stored()[0] != oldest:  # more records are removed meanwhile
                oldest = desk.shop.stored()[0]
                told = desk.run("replay", "crm", "--from", start)
            first, second, *_ = told.splitlines()
            number = oldest["data"]["number"]
            assert first == (
                f"older records have been removed from the journal: it begins with {number}, received"
                f" {oldest['receivedAt']}"
            )
            assert second == f"crm gets the records {number} to 30 again: {31 - number} of {31 - number} in the journal"
        told = desk.told("replay", "crm", "--from", "1")
        assert (told["trimmed"], told["from"], told["replayed"]) == (True, number, 31 - number)


def test_records_from_before_the_sink_began_are_reported_as_new_to_it(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1, 2)
    text = desk.shop.config.read_text()
    erp = Told(desk.folder, "erp")
    desk.shop.config.write_text(text + f"[sinks.erp]\n{erp.options()['sinks.erp']}\n")
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 3)
        wait_until(lambda: erp.numbers() == [3])
        printed = desk.run("replay", "erp", "--from", "1")
        assert "(it began after record 2: it gets the records up to there for the first time)" in printed
        assert erp.numbers() == [3, 1, 2, 3]


def test_ctrl_c_leaves_the_command_to_the_daemon(tmp_path: Path) -> None:
    desk = Desk(tmp_path, batch=1)
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, *range(1, 11))
        desk.crm.tell(seconds=0.1)
        with desk.begin("replay", "crm", "--from", "1") as command:
            wait_until(lambda: len(desk.crm.numbers()) > 12)
            desk.crm.tell(hang=True)
            assert command.stderr is not None
            assert re.fullmatch(r" \d0 % of 10 records processed\n", command.stderr.readline())
            [order] = desk.status()["orders"]
            assert (order["number"], order["order"], order["of"]) == (1, "replay", 10)
            command.send_signal(signal.SIGINT)
            _, said = command.communicate(timeout=PATIENCE)
            assert command.returncode == 130
        assert (
            "the command continues in the daemon; ingestd sinks status crm shows its progress" in said.splitlines()[-1]
        )
        assert re.search(r"^crm: command 1, replay of 1 to 10: \d0 %$", desk.run("status"), re.MULTILINE)
        desk.crm.tell()
        wait_until(lambda: len(desk.crm.numbers()) >= 20)
        wait_until(lambda: desk.status()["orders"] == [])
        assert list(dict.fromkeys(desk.crm.numbers()[10:])) == [*range(1, 11)]


def test_without_a_daemon_an_interrupted_command_is_completed_by_the_next_daemon(tmp_path: Path) -> None:
    desk = Desk(tmp_path, batch=1)
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, *range(1, 11))
    desk.crm.tell(seconds=0.1)
    with desk.begin("replay", "crm", "--from", "1") as command:
        wait_until(lambda: len(desk.crm.numbers()) > 12)
        desk.crm.tell(hang=True)
        # Other commands work meanwhile. A daemon is refused with the process that has the store.
        assert 0 < desk.status()["orders"][0]["done"] < 10
        refused = run_ingestd("serve", config=desk.shop.config)
        assert (refused.returncode, f"in use by process {command.pid}" in refused.stderr) == (78, True)
        command.terminate()
        _, said = command.communicate(timeout=PATIENCE)
        assert command.returncode == 143
    assert said.splitlines()[0] == "no daemon has the sink, so this command writes to it"
    assert "the command is kept" in said.splitlines()[-1]
    desk.crm.tell()
    with desk.shop.serve() as daemon:
        wait_until(lambda: len(desk.crm.numbers()) >= 20)
        delivered(desk, daemon, 11)
    status = desk.status()
    assert (status["delivered"], status["lost"], status["position"], status["orders"]) == (11, 0, 11, [])
    again = [number for number in desk.crm.numbers()[10:] if number != 11]
    assert list(dict.fromkeys(again)) == [*range(1, 11)]
    assert len(again) <= 11  # the record that was being written may come twice


def test_a_command_without_waiting_is_done_by_the_next_daemon(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1, 2)
    assert "command 1 waits for the daemon" in desk.run("replay", "crm", "--from", "1", "--no-wait").splitlines()[-1]
    told = desk.told("replay", "crm", "--from", "2", "--no-wait")
    assert (told["order"], told["done"], told["replayed"]) == (2, False, 0)
    assert desk.run("status").splitlines()[-2:] == [
        "crm: command 1, replay of 1 to 2: waits", "crm: command 2, replay of 2 to 2: waits",
    ]  # fmt: skip
    assert desk.crm.numbers() == [1, 2]
    with desk.shop.serve():
        wait_until(lambda: desk.crm.numbers() == [1, 2, 1, 2, 2])
        wait_until(lambda: desk.status()["orders"] == [])


def test_a_waiting_command_shows_why_the_sink_fails(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1)
        desk.crm.tell(fail="down for repairs")
        with desk.begin("replay", "crm", "--from", "1") as command:
            wait_until(lambda: desk.status()["state"] == "failing")
            assert command.stderr is not None
            assert command.stderr.readline() == "crm is failing and retries: down for repairs\n"
            desk.run("pause", "crm")
            assert command.stderr.readline() == "crm is paused: the command waits until it is resumed\n"
            desk.crm.tell()
            desk.run("resume", "crm")
            printed, _ = command.communicate(timeout=PATIENCE)
            assert printed.splitlines()[-1] == "1 records written to crm again"
            assert command.returncode == 0


def test_on_a_terminal_a_bar_shows_the_progress(desk: Desk) -> None:
    with desk.shop.serve() as daemon:
        delivered(desk, daemon, 1, 2)
        ours, theirs = pty.openpty()
        with desk.begin("replay", "crm", "--from", "1", stderr=theirs) as command:
            os.close(theirs)
            shown = read_until(ours, b"records processed\r\n")
            assert command.wait(PATIENCE) == 0
        os.close(ours)
    assert "\r" + "█" * 30 + " 100 % of 2 records processed" in shown
