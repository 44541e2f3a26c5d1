"""`ingestd sinks dead-letters …`, and forgetting a person with dead letters."""

from __future__ import annotations

import json
import os
import pty
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE
from tests.support.sink_desk import BOTH, Desk, delivered, read_until
from tests.support.terminal import shown_on_terminal

pytestmark = pytest.mark.usefixtures("told_sink")


@BOTH
def test_dead_letters_are_listed_and_shown_whole(desk: Desk, *, beside: bool) -> None:
    with ExitStack() as running:
        daemon = running.enter_context(desk.shop.serve())
        desk.crm.tell(reject={2: "too\x1b[2J long: " + "日本" * 100, 4: "no"})
        delivered(desk, daemon, 1, 2, 3, 4)
        if not beside:
            running.close()
        records = desk.shop.stored()
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
        assert row.endswith("  too\ufffd[2J long: " + "日本" * 100)  # the reason is not shortened in a pipe
        shown_row = shown_on_terminal("sinks", "dead-letters", "list", "crm", config=desk.shop.config).split("\r\n")[1]
        assert re.search(r"  too\ufffd\[2J long: [日本]+…$", shown_row)
        shown = json.loads(desk.run("dead-letters", "show", "crm", "1", "--json"))
        assert shown == {**first, "record": records[1]}
        page = desk.run("dead-letters", "show", "crm", "1")
        assert json.loads(page.partition("\n\n")[2]) == records[1]
        assert "\x1b" not in page
        assert "crm has no dead letter 9" in desk.refused("dead-letters", "show", "crm", "9")
        assert desk.run("dead-letters", "list", "archive") == "archive has no dead letters\n"


def test_metrics_agree_after_dead_letters_are_retried_discarded_and_replayed(desk: Desk) -> None:
    with desk.shop.serve() as daemon:

        def metric(name: str) -> float:
            return daemon.metric(f'ingestd_sink_{name}{{sink="crm"}}')

        desk.crm.tell(reject={2: "no", 4: "no", 5: "no"})
        delivered(desk, daemon, *range(1, 7))
        wait_until(lambda: daemon.metric("ingestd_journal_records") == 6)
        assert (metric("delivered_total"), metric("given_up_total"), metric("dead_letters")) == (3, 3, 3)
        desk.crm.tell(reject={4: "no"})
        desk.run("dead-letters", "retry", "crm", "--all")
        desk.run("dead-letters", "discard", "crm", "--all", "--yes")
        desk.run("replay", "crm", "--from", "1")
        wait_until(lambda: metric("dead_letters") == 1)  # the replay makes one dead letter again
        assert (metric("delivered_total"), metric("given_up_total"), metric("pending")) == (3, 3, 0)


def test_a_dead_letter_is_in_the_log_and_on_the_page(desk: Desk) -> None:
    def on_the_page() -> tuple[int, str | None]:
        shown = daemon.ops("/status.json").json()
        (crm,) = [each for each in shown["sinks"] if each["sink"] == "crm"]
        return crm["deadLetters"], crm["lastDeadLetterReason"]

    with desk.shop.serve() as daemon:
        wait_until(lambda: on_the_page() == (0, None))
        desk.crm.tell(reject={2: "no such customer"})
        delivered(desk, daemon, 1, 2, 3)
        wait_until(lambda: on_the_page() == (1, "no such customer"))
        daemon.read_log()
        (line,) = [line for line in daemon.log if "dead letter" in line]
        for part in ("WARNING", "sink:crm", "dead letter 1", "no such customer", "ingestd sinks dead-letters list crm"):
            assert part in line
    with desk.shop.serve() as daemon:
        wait_until(lambda: on_the_page() == (1, "no such customer"))
        desk.run("dead-letters", "discard", "crm", "1", "--yes")
        wait_until(lambda: on_the_page() == (0, None))


@BOTH
def test_retrying_reports_delivered_and_remaining_dead_letters(desk: Desk, *, beside: bool) -> None:
    with ExitStack() as running:
        daemon = running.enter_context(desk.shop.serve())
        desk.crm.tell(reject={number: f"no {number}" for number in range(2, 9)})
        delivered(desk, daemon, *range(1, 10))
        if not beside:
            running.close()
        desk.crm.tell(reject={4: "never", 8: "never ever"})
        told = desk.told("dead-letters", "retry", "crm", "1", "3-5")  # the events 2 and 4 to 6
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
def test_discarded_dead_letters_are_removed_and_not_written(desk: Desk, *, beside: bool) -> None:
    with ExitStack() as running:
        daemon = running.enter_context(desk.shop.serve())
        desk.crm.tell(reject=dict.fromkeys(range(2, 6), "no"))
        delivered(desk, daemon, *range(1, 6))
        if not beside:
            running.close()
        desk.crm.tell()
        assert "confirm with --yes" in desk.refused("dead-letters", "discard", "crm", "1")
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
        (["crm"], 2, "give the numbers of dead letters, or --all"),
        (["crm", "1", "--all"], 2, "give the numbers of dead letters, or --all"),
        (["crm", "0"], 2, "expected the number of a dead letter, or a range such as 3-7"),
        (["crm", "7-3"], 2, "expected the number of a dead letter, or a range such as 3-7"),
        (["crm", "7"], 1, "crm has no dead letter 7"),
        (["crm", "7-9"], 1, "crm has no dead letter 7 to 9"),
    ],
)
def test_the_numbers_of_dead_letters_are_required_and_checked(
    desk: Desk, arguments: list[str], code: int, message: str
) -> None:
    assert message in desk.refused("dead-letters", "discard", *arguments, "--yes", code=code)


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
        assert "nothing to forget" in desk.shop.command("forget", "--anonymous", "ada-visitor")
        desk.crm.tell()
        assert desk.told("dead-letters", "retry", "crm", "--all")["taken"] == 3
        records = desk.shop.stored()
        assert [record.get("erased", False) for record in records] == [True, True, False, False, False]
        dead = [records[0], records[1], records[3]]
        ids = [record["id"] for record in dead]
        assert [record for record in desk.crm.records() if record["id"] in ids] == dead

        def on_disk() -> bytes:
            return b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*.db*")))

        wait_until(lambda: on_disk().count(b"ada-visitor") == 1)  # only the erasure contains the id


def test_a_person_is_forgotten_in_dead_letters_after_the_records_were_removed(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tables={"journal": 'keep_size = "2kB"'})
    with desk.shop.serve() as daemon:
        desk.crm.tell(reject={1: "no"})
        body = {"anonymousId": "ada-visitor", "userId": "ada", "traits": {}}
        assert daemon.post("/identify/public", body, desk.shop.public.id).status == 200
        desk.send(daemon, 1, visitor="ada-visitor")
        delivered(desk, daemon, *range(2, 20))
        wait_until(lambda: desk.shop.stored()[0]["anonymousId"] != "ada-visitor")
        told = json.loads(desk.shop.command("forget", "--user", "ada", "--json"))
        assert (told["counts"]["dead letters"], told["counts"]["records"]) == (1, 0)
        shown = json.loads(desk.run("dead-letters", "show", "crm", "1", "--json"))["record"]
        assert (shown["erased"], shown["anonymousId"], shown["userId"]) == (True, None, None)
        again = json.loads(desk.shop.command("forget", "--user", "ada", "--json"))
        assert not sum(again["counts"].values())
