"""Commands and pages of the operators over a store with several partitions, beside a daemon and without one."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE, Daemon, Shop, run_ingestd
from tests.support.forked import INGESTD, Command, short_times
from tests.support.live import EventStream
from tests.support.partitioned import PartitionedShop, partitions_installed, tenant_in
from tests.support.told_sink import SOURCE, Told

QUICK = 'timeout = "1s"\nretry = { initial = "10ms", max = "100ms" }\nbatch = { max_wait = "0s" }'


class Shops(PartitionedShop):
    """A shop in each of three partitions, with a sink `crm` that a test controls."""

    def __init__(self, folder: Path) -> None:
        self.crm = Told(folder)
        super().__init__(folder, {"http": 'shutdown_timeout = "500ms"', **self.crm.options(QUICK)})

    def send(self, daemon: Daemon, index: int, *numbers: int, key: str = "Page View", **members: Any) -> None:
        """Sends events to the shop in a partition, each in another millisecond, which decides the order."""
        for number in numbers:
            time.sleep(0.002)
            body = {"key": key, "anonymousId": "v", "data": {"number": number}, **members}
            assert daemon.post("/track", body, self.keys[self.tenants[index]].id).status == 200

    def delivered(self) -> None:
        wait_until(lambda: self.is_done("sink:crm", "sink:archive", "attribution"))

    def told(self, *arguments: str) -> Any:
        """The output of a command with `--json`, which must be one object."""
        return json.loads(self.command(*arguments, "--json"))

    def run(self, *arguments: str, code: int = 1) -> tuple[str, str]:
        """The output and the last line of the errors of a command with this exit code."""
        done = run_ingestd(*arguments, config=self.config)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr.splitlines()[-1]


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("site")
    with partitions_installed(site, {"told": SOURCE}), short_times(sink_commands=0.05, next_action=0.1):
        yield


@pytest.fixture
def shops(tmp_path: Path) -> Shops:
    return Shops(tmp_path)


def numbers_of(records: list[dict[str, Any]]) -> list[int]:
    return [record["data"]["number"] for record in records]


def test_an_export_is_in_the_order_of_receipt(shops: Shops) -> None:
    with shops.serve() as daemon:
        for number in range(9):
            shops.send(daemon, number % 3, number)
        assert numbers_of(shops.exported()) == [*range(9)]
        assert numbers_of(shops.exported("--tenant", shops.tenants[1])) == [1, 4, 7]
        assert numbers_of(shops.exported("--limit", "4")) == [0, 1, 2, 3]
    assert numbers_of(shops.exported()) == [*range(9)]


def test_an_export_follows_all_partitions(shops: Shops) -> None:
    command = [INGESTD, "events", "export", "--follow", "--limit", "4", "--config", str(shops.config)]
    with shops.serve() as daemon:
        shops.send(daemon, 0, 1)
        with Command(command, stdout=subprocess.PIPE, text=True) as export:
            assert export.stdout is not None
            lines = [export.stdout.readline()]
            for number in (2, 3, 4):
                shops.send(daemon, number % 3, number)
                lines.append(export.stdout.readline())
            assert export.wait(PATIENCE) == 0
    assert numbers_of(list(map(json.loads, lines))) == [1, 2, 3, 4]


def test_an_export_tells_which_partition_is_missing(shops: Shops) -> None:
    with shops.serve() as daemon:
        for number in range(3):
            shops.send(daemon, number, number)
    with shops.away(1):
        printed, error = shops.run("events", "export")
        assert numbers_of(list(map(json.loads, printed.splitlines()))) == [0, 2]
        assert "partition 1 is out of reach, so records of its tenants are missing here" in error
        assert numbers_of(shops.exported("--tenant", shops.tenants[2])) == [2]
        assert "partition 1 is away" in shops.run("events", "export", "--tenant", shops.tenants[1], code=75)[1]


def test_the_status_of_a_sink_adds_up(shops: Shops) -> None:
    with shops.serve() as daemon:
        for index in range(3):
            shops.send(daemon, index, *range(index + 1))
        shops.delivered()
        told = shops.told("sinks", "status", "crm")
        assert (told["state"], told["delivered"], told["pending"]) == ("running", 6, 0)
        assert [part["delivered"] for part in told["partitions"]] == [1, 2, 3]
        assert [part["partition"] for part in told["partitions"]] == ["0", "1", "2"]
        assert re.search(r"^crm +told +running +6 +0 +0 ", shops.command("sinks", "status"), re.MULTILINE)
    with shops.away(2):
        printed, error = shops.run("sinks", "status", "crm", "--json")
        assert json.loads(printed)["delivered"] == 3
        assert "partition 2 is out of reach" in error


def test_a_sink_that_fails_names_the_partition(shops: Shops) -> None:
    with shops.serve() as daemon:
        shops.crm.tell(fail="no room")
        shops.send(daemon, 1, 1)
        wait_until(lambda: shops.told("sinks", "status", "crm")["state"] == "failing")
        assert re.search(r"crm: failed in partition 1 \d+ times in a row", shops.command("sinks", "status"))
        shops.crm.tell()
        shops.delivered()


def test_a_pause_is_for_all_partitions(shops: Shops) -> None:
    assert shops.told("sinks", "pause", "crm")["changed"]
    with shops.serve() as daemon:
        for index in range(3):
            shops.send(daemon, index, index)
        told = shops.told("sinks", "status", "crm")
        assert (told["state"], told["delivered"], told["pending"]) == ("paused", 0, 3)
        shops.command("sinks", "resume", "crm")
        shops.delivered()
    with shops.away(0):
        printed, error = shops.run("sinks", "pause", "crm")
        assert "crm is paused" in printed
        assert "partition 0 is out of reach, so crm is not paused there" in error
    assert shops.told("sinks", "status", "crm")["state"] == "partly paused"


@pytest.mark.parametrize("beside", [True, False], ids=["beside a daemon", "without a daemon"])
def test_a_replay_goes_through_all_partitions(shops: Shops, beside: bool) -> None:
    def replayed(*arguments: str) -> tuple[Any, list[int]]:
        before = len(shops.crm.numbers())
        told = shops.told("sinks", "replay", "crm", *arguments)
        return told, sorted(shops.crm.numbers()[before:])

    def replay() -> None:
        told, numbers = replayed("--from", "1h")
        assert (told["records"], told["replayed"], told["done"]) == (6, 6, True)
        assert [part["records"] for part in told["partitions"]] == [1, 2, 3]
        assert numbers == [0, 10, 11, 20, 21, 22]
        told, numbers = replayed("--from", "2:2")
        assert ([part["partition"] for part in told["partitions"]], numbers) == (["2"], [21, 22])
        error = shops.run("sinks", "replay", "crm", "--from", "2")[1]
        assert "every partition counts its records: give PARTITION:NUMBER, such as 0:1" in error
        assert "there is no partition '7'" in shops.run("sinks", "replay", "crm", "--from", "7:2")[1]

    with shops.serve() as daemon:
        for index in range(3):
            shops.send(daemon, index, *range(10 * index, 10 * index + index + 1))
        shops.delivered()
        if beside:
            replay()
    if not beside:
        replay()


def test_a_replay_tells_which_partition_is_missing(shops: Shops) -> None:
    with shops.serve() as daemon:
        for index in range(3):
            shops.send(daemon, index, index)
        shops.delivered()
    with shops.away(1):
        printed, error = shops.run("sinks", "replay", "crm", "--from", "1h")
        assert "2 records written to crm again" in printed
        assert "partition 1 is out of reach, so its records are not replayed" in error
    assert sorted(shops.crm.numbers()) == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("beside", [True, False], ids=["beside a daemon", "without a daemon"])
def test_a_dead_letter_is_named_by_its_partition(shops: Shops, beside: bool) -> None:
    def letters() -> list[tuple[str, int]]:
        lines = shops.command("sinks", "dead-letters", "list", "crm", "--json").splitlines()
        return [(letter["partition"], letter["number"]) for letter in map(json.loads, lines)]

    def handle() -> None:
        shops.crm.tell()
        assert letters() == [("0", 1), ("0", 2), ("2", 1), ("2", 2)]
        listed = shops.command("sinks", "dead-letters", "list", "crm")
        assert re.findall(r"^ *(\d+:\d+) ", listed, re.MULTILINE) == ["0:1", "0:2", "2:1", "2:2"]
        assert shops.told("sinks", "dead-letters", "show", "crm", "2:1")["record"]["data"] == {"number": 20}
        assert "crm has no dead letter 1:1" in shops.run("sinks", "dead-letters", "show", "crm", "1:1")[1]
        error = shops.run("sinks", "dead-letters", "retry", "crm", "1")[1]
        assert "every partition counts its dead letters: give PARTITION:NUMBER" in error
        told = shops.told("sinks", "dead-letters", "retry", "crm", "0:2", "2:2")
        assert (told["letters"], told["taken"], told["dead"]) == (2, 2, [])
        assert sorted(shops.crm.numbers()) == [1, 21]
        assert "1 of 1 discarded" in shops.command("sinks", "dead-letters", "discard", "crm", "0:1", "--yes")
        assert letters() == [("2", 1)]
        assert "1 of 1 taken" in shops.command("sinks", "dead-letters", "retry", "crm", "--all")
        assert letters() == []

    shops.crm.tell(reject=dict.fromkeys((0, 1, 20, 21), "not wanted"))
    with shops.serve() as daemon:
        shops.send(daemon, 0, 0, 1)
        shops.send(daemon, 2, 20, 21)
        wait_until(lambda: shops.told("sinks", "status", "crm")["deadLetters"] == 4)
        if beside:
            handle()
    if not beside:
        handle()


def test_the_page_shows_the_dead_letters_of_all_partitions(shops: Shops) -> None:
    shops.crm.tell(reject=dict.fromkeys(range(60), "not wanted"))
    with shops.serve() as daemon:
        shops.send(daemon, 0, 0)
        shops.send(daemon, 1, *range(1, 55))
        shops.send(daemon, 2, 55)
        wait_until(lambda: shops.told("sinks", "status", "crm")["deadLetters"] == 56)
        first = daemon.ops("/dead-letters.json?sink=crm").json()
        rest = daemon.ops(f"/dead-letters.json?sink=crm&before={first['next']}").json()
        shown = [(each["partition"], each["number"]) for each in first["letters"] + rest["letters"]]
        assert shown == [("0", 1), *(("1", number) for number in range(54, 0, -1)), ("2", 1)]
        assert (first["next"], rest["next"]) == ("1:6", None)
        assert next(each for each in first["sinks"] if each["sink"] == "crm")["deadLetters"] == 56
        assert "crm 1:54" in first["letters"][1]["commands"]["show"]
        assert daemon.ops("/dead-letters.json?sink=crm&before=5").status == 400


def test_a_person_is_forgotten_in_the_partition_of_the_shop(shops: Shops) -> None:
    with shops.serve() as daemon:
        for index in range(3):
            body = {"anonymousId": "v", "userId": "ada"}
            assert daemon.post("/identify/public", body, shops.keys[shops.tenants[index]].id).status == 200
            shops.send(daemon, index, index)
        error = shops.run("forget", "--user", "ada")[1]
        assert "choose with --tenant" in error
        assert all(tenant in error for tenant in shops.tenants)
        told = shops.told("forget", "--user", "ada", "--tenant", shops.tenants[1])
        assert (told["counts"]["records"], told["counts"]["links"], told["anonymousIds"]) == (2, 1, ["v"])
        linked = {record["tenant"] for record in shops.exported("--user", "ada", "--type", "identify")}
        assert linked == {shops.tenants[0], shops.tenants[2]}


def test_a_tenant_is_not_moved_by_a_back_end_that_cannot_do_it(shops: Shops) -> None:
    error = shops.run("partitions", "place", shops.tenants[0], "--partition", "1")[1]
    assert "cannot move a tenant to another partition" in error
    assert "there is no partition '4'" in shops.run("partitions", "place", shops.tenants[0], "--partition", "4")[1]
    with shops.serve() as daemon:
        shops.send(daemon, 0, 1)


def order(shops: Shops, daemon: Daemon, index: int, order_id: str, total: int, tenant: str | None = None) -> None:
    key = shops.keys[tenant or shops.tenants[index]].id
    for body in (
        {"key": "Page View", "data": {}, "context": {"campaign": {"source": f"source-{index}"}}},
        {"key": "Order Completed", "data": {"order_id": order_id, "total": total, "currency": "EUR"}},
    ):
        assert daemon.post("/track", {"anonymousId": "v", **body}, key).status == 200


def test_attribution_is_shown_and_reported_over_all_partitions(shops: Shops) -> None:
    with shops.serve() as daemon:
        for index in range(3):
            order(shops, daemon, index, f"o-{index}", 10 * (index + 1))
        shops.delivered()
        rows = list(map(json.loads, shops.command("attribution", "report", "--since", "1d", "--json").splitlines()))
        assert {row["source"]: row["revenue"] for row in rows} == {"source-0": 10, "source-1": 20, "source-2": 30}
        assert [(row["sessions"], row["visitors"], row["new"]) for row in rows] == [(1, 1, 1)] * 3
        assert "source-2" in shops.command("attribution", "show", "o-2")
        assert "is not attributed" in shops.run("attribution", "show", "o-7")[1]
        (panel,) = daemon.ops("/status.json").json()["panels"]
        (table,) = [each for each in panel["tables"] if each["choice"] == panel["chosen"]]
        assert {row[0] for row in table["rows"]} == {f"source-{index}" for index in range(3)}
        tenants = next(each for each in panel["filters"] if each["name"] == "tenant")
        assert {option["value"] for option in tenants["options"]} == {"", *shops.tenants}
        for query, total in (("", 60), (f"&tenant={shops.tenants[1]}", 20)):
            sales = daemon.ops(f"/sales.json?days=7{query}").json()
            assert sum(row["net"] for row in sales["rows"]) == sum(sales["course"]["currencies"]["EUR"]["net"]) == total
        assert {each["net"] for each in daemon.ops("/orders.json").json()["orders"]} == {10, 20, 30}
        with EventStream(daemon, earlier="1") as stream:
            assert len(stream.earlier) == 6
        found = daemon.ops("/journey.json?order=o-1").json()
        assert {session["tenant"] for session in found["sessions"]} == {shops.tenants[1]}
        asked = daemon.ops("/journey.json?visitor=v")
        assert (asked.status, "Give the tenant too" in asked.json()["error"]) == (400, True)
        found = daemon.ops(f"/journey.json?visitor=v&tenant={shops.tenants[2]}").json()
        assert {session["tenant"] for session in found["sessions"]} == {shops.tenants[2]}
    with shops.away(1):
        printed, error = shops.run("attribution", "report", "--since", "1d", "--json")
        assert {json.loads(line)["source"] for line in printed.splitlines()} == {"source-0", "source-2"}
        assert "partition 1 is out of reach, so orders of its tenants are missing here" in error
        error = shops.run("attribution", "show", "o-1")[1]
        assert "partition 1 is out of reach, so the order 'o-1' was not found, but may be there" in error
        assert "source-2" in shops.command("attribution", "show", "o-2", "--tenant", shops.tenants[2])


def test_an_import_stores_each_record_in_the_partition_of_its_shop(shops: Shops, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = Shop(folder)
    tenants = [*shops.tenants, tenant_in(1, 1)]
    keys = [other.create_key("public", tenant) for tenant in tenants]
    with other.serve() as daemon:
        for number in range(8):
            body = {"key": "Page View", "anonymousId": "v", "data": {"number": number}}
            assert daemon.post("/track", body, keys[number % 4].id).status == 200
    file = tmp_path / "records.jsonl"
    file.write_text(other.command("events", "export"))
    assert shops.told("events", "import", str(file))["counts"] == {"imported": 8}
    for index, tenant in enumerate(tenants):
        assert numbers_of(shops.exported("--tenant", tenant)) == [index, index + 4]
    with shops.serve():
        assert shops.told("events", "import", str(file))["counts"] == {"duplicate": 8}
        shops.delivered()
    assert sorted(shops.crm.numbers()) == [*range(8)]


def test_check_tells_the_state_of_all_partitions(shops: Shops) -> None:
    with shops.serve() as daemon:
        for index in range(3):
            shops.send(daemon, index, index)
        shops.delivered()
    told = shops.told("check")
    assert [each["records"] for each in told["journal"] if each["name"] == "size"] == [3]
    assert {each["name"]: each["lag"] for each in told["consumers"]}["sink:crm"] == 0
    with shops.away(1):
        printed, _ = shops.run("check", "--json", code=75)
        found = json.loads(printed)
        assert ("partition 1", "unavailable") in [(each["name"], each["status"]) for each in found["store"]]
        assert [each["records"] for each in found["journal"] if each["name"] == "size"] == [2]


def test_keys_are_in_the_first_partition(shops: Shops) -> None:
    with shops.away(1, 2):
        shops.command("keys", "create", "--kind", "public", "--tenant", shops.tenants[2])
    with shops.away(0):
        assert "partition 0 is away" in shops.run("keys", "list", code=75)[1]


def test_there_is_no_loss_to_acknowledge(shops: Shops) -> None:
    assert shops.command("store", "acknowledge-loss") == "there is no loss of data to acknowledge\n"
    with shops.away(2):
        error = shops.run("store", "acknowledge-loss")[1]
        assert "partition 2 is out of reach, so a loss there is not acknowledged" in error


def test_the_partitions_are_shown_with_the_tenants_that_load_them(shops: Shops) -> None:
    quiet, hostile = tenant_in(2, 1), tenant_in(1, 1)
    shops.keys[hostile] = shops.create_key("public", hostile)
    with shops.serve() as daemon:
        for index in range(3):
            shops.send(daemon, index, *range(index + 1))
        body = {"key": "Page View", "anonymousId": "v", "data": {"filler": "x" * 5000}}
        for _ in range(3):
            assert daemon.post("/track", body, shops.keys[hostile].id).status == 200
        lines = shops.command("partitions", "show", "--json").splitlines()
    told = list(map(json.loads, lines))
    assert [(part["partition"], part["records"]) for part in told] == [("0", 1), ("1", 5), ("2", 3)]
    assert [each["tenant"] for each in told[1]["tenants"]] == [hostile, shops.tenants[1]]
    first, second = told[1]["tenants"]
    assert first["eventsPerSecond"] == pytest.approx(1.5 * second["eventsPerSecond"], rel=0.01)
    assert first["bytesPerSecond"] > 5 * second["bytesPerSecond"]
    assert told[1]["eventsPerSecond"] == pytest.approx(first["eventsPerSecond"] + second["eventsPerSecond"], rel=0.01)
    assert told[1]["bytes"] > 15_000
    printed = shops.command("partitions", "show")
    assert re.search(r"^1 +5 +1\d\.\d KiB +\(all\) +\d+\.\d +", printed, re.MULTILINE)
    assert re.search(rf"^ +{hostile} +\d+\.\d +", printed, re.MULTILINE)
    # A tenant that has sent nothing has a partition too.
    (only,) = map(json.loads, shops.command("partitions", "show", quiet, "--json").splitlines())
    assert (only["partition"], only["records"]) == ("2", 3)
    assert only["tenants"] == [{"tenant": quiet, "eventsPerSecond": 0.0, "bytesPerSecond": 0.0}]
    with shops.away(1):
        printed, error = shops.run("partitions", "show", "--json")
        assert [json.loads(line)["partition"] for line in printed.splitlines()] == ["0", "2"]
        assert "partition 1 is out of reach, so the load there is unknown" in error
        assert shops.command("partitions", "show", quiet, "--json")
        shops.run("partitions", "show", hostile, code=75)
