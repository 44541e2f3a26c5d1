"""Rehearsed upgrades: this version serves from the stores that former versions have left, and keeps every promise.

`scripts/record_store.py` has recorded the stores. The daemon and Redis run at the time of the recording, by
libfaketime: otherwise sessions and memories of messages would have ended.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scripts.record_store import CONFIG, DATA, DECLARED, FOUND, SERVERS, VISITORS, Receiver, order, refund
from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE, Daemon, Key, Reply
from tests.support.faketime import faked, faked_redis
from tests.support.forked import INGESTD, run
from tests.support.redis_server import redis_server

RECORDED = sorted(file for file in DATA.glob("*/*.store.gz"))
_NEW = VISITORS - 1
"""A visitor who has not ordered yet."""


@dataclass
class Upgraded:
    """What callers, operators and sinks got from this version. `told` is what they got from the former one."""

    told: dict[str, Any]
    config: Path
    environment: Mapping[str, str]
    crm: Receiver
    slow: Receiver
    daemon: Daemon = field(init=False)
    check: str = ""
    records: list[dict[str, Any]] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, Any] = field(default_factory=dict)
    repeated: dict[str, Any] = field(default_factory=dict)
    letters: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int = -1

    def command(self, *arguments: str) -> str:
        command = [INGESTD, *arguments, "--config", str(self.config)]
        done = run(command, env={**os.environ, **self.environment}, text=True)
        assert done.returncode == 0, done.stderr
        printed: str = done.stdout
        return printed

    def export(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.command("events", "export").splitlines()]

    def track(self, **members: Any) -> Any:
        body = {"key": "Page View", "data": {}, **members}
        return _taken(lambda: self.daemon.post("/track", body, self.told["public"]))["session"]

    def signed(self, body: dict[str, Any]) -> None:
        _taken(lambda: self.daemon.post_signed(body, _key(self.told["server"])))

    def archived(self) -> list[dict[str, Any]]:
        file = self.config.parent / "archive.jsonl"
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]  # the last line may grow

    def delivered(self, sink: str) -> list[str]:
        """The ids of records that this version has written to a sink."""
        if sink == "archive":
            return [each["id"] for each in self.archived()]
        return {"crm": self.crm, "slow": self.slow}[sink].ids

    def has_all(self, sink: str) -> bool:
        return {each["id"] for each in self.records} <= {*self.told["delivered"][sink], *self.delivered(sink)}


def _taken(send: Callable[[], Reply]) -> Any:
    """The answer of 200. A busy machine delays Redis beyond the daemon's patience; then a client sends again."""
    deadline = time.monotonic() + PATIENCE
    while (answer := send()).status == 503 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert answer.status == 200, answer.body
    return answer.json()


def _key(told: dict[str, str]) -> Key:
    return Key(told["id"], told["secret"])


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the clock of this version, which looks at it every second.

    All stores have the same file, hence one fork server: programs that it forks look when they start.
    """
    return tmp_path_factory.mktemp("clock") / "clock"


@pytest.fixture(scope="module", params=RECORDED, ids=lambda file: f"{file.parent.name}-{file.name.partition('.')[0]}")
def upgraded(
    request: pytest.FixtureRequest, clock: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upgraded]:
    file: Path = request.param
    folder = tmp_path_factory.mktemp("upgrade")
    told = json.loads(gzip.decompress(file.with_name(file.name.replace(".store.", ".json.")).read_bytes()))
    store = gzip.decompress(file.read_bytes())
    behind = told["stoppedAt"] / 1000 + 5 - time.time()
    clock.write_text(f"{behind:+.0f}")
    environment = faked(FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_CACHE_DURATION="0")
    with ExitStack() as stack:
        kind = file.name.partition(".")[0]
        if kind in SERVERS:
            url = stack.enter_context(_redis(folder, store, faked_redis(FAKETIME=f"{behind:+.0f}"), kind))
        else:
            (folder / "ingestd.db").write_bytes(store)
            url = "sqlite:ingestd.db"
        crm, slow = Receiver(lambda _: 200), Receiver(lambda _: 200)
        config = folder / "ingestd.toml"
        config.write_text(CONFIG.format(http=0, ops=0, url=url, crm=crm.port, slow=slow.port))
        made = Upgraded(told, config, environment, crm, slow)
        made.check = made.command("check")
        made.daemon = stack.enter_context(Daemon(config, environment=environment))
        _go_on(made)
        yield made


@contextmanager
def _redis(folder: Path, dump: bytes, environment: Mapping[str, str], kind: str) -> Iterator[str]:
    """The URL of a server with the recorded data. Only a server without an append-only file reads a dump."""
    scheme, options = SERVERS[kind]
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in environment.items():
            patch.setenv(name, value)
        server = stack.enter_context(redis_server(folder, {"appendonly": "no", **options}))
        if kind == "cluster":
            server.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
        server.kill()
        (folder / "dump.rdb").write_bytes(dump)
        server.start()
        patch.undo()
        client = server.client()
        if kind == "cluster":
            wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        client.config_set("appendonly", "yes")
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        yield f"{scheme}://127.0.0.1:{server.port}"


def _go_on(made: Upgraded) -> None:
    """What the shop does after the upgrade: it goes on, and repeats what it has sent before."""
    told, daemon = made.told, made.daemon
    for name, key in (("public", told["public"]), ("declared", DECLARED), ("revoked", told["revoked"])):
        body = {"key": "Page View", "anonymousId": "of keys", "data": {}}
        made.statuses[name] = daemon.post("/track", body, key).status
    for name in ("server", "renewed", "rotated"):
        made.statuses[name] = daemon.post_signed(
            {"key": "Page View", "anonymousId": "of keys", "data": {}}, _key(told[name])
        ).status
    made.sessions = {visitor: made.track(anonymousId=visitor) for visitor in told["sessions"]}
    made.repeated = {
        visitor: made.track(anonymousId=visitor, messageId=f"m-{visitor[1:]}", key="Product Viewed")
        for visitor in told["sessions"]
    }
    orders = [each for each in told["records"] if each["type"] == "attribution" and each["orderId"] != "o-early"]
    for each in range(len(orders)):
        made.signed(order(each, each))
    for refunds in ((0, "r-0"), (1, "r-1"), (0, "r-0-second"), (0, "r-0-third")):
        made.signed(refund(refunds[0], refunds[0], refunds[1], 30))
    made.signed(order("early", VISITORS - 2))
    for each in (_NEW, *FOUND):
        made.signed(order(f"new-{each}", each))
    wanted = {"attribution": 2 + len(FOUND), "attribution_reversal": 3}
    wait_until(lambda: _derived(made) == wanted)
    made.letters = [
        json.loads(line) for line in made.command("sinks", "dead-letters", "list", "crm", "--json").splitlines()
    ]
    made.command("sinks", "dead-letters", "retry", "crm", "--all")
    made.records = made.export()
    wait_until(lambda: all(made.has_all(sink) for sink in told["delivered"]))
    made.exit_code = daemon.terminate()


def _derived(made: Upgraded) -> dict[str, int]:
    """The numbers of records that attribution has added, as the archive has them."""
    return dict(Counter(each["type"] for each in made.archived() if each["type"].startswith("attribution")))


def test_the_check_before_the_start_warns_of_nothing_but_the_upgrade(upgraded: Upgraded) -> None:
    warnings = [line for line in upgraded.check.splitlines() if "WARNING" in line]
    assert all("written by an earlier version of ingestd" in line for line in warnings)


def test_the_daemon_starts_and_stops_without_a_warning(upgraded: Upgraded) -> None:
    assert upgraded.exit_code == 0
    remarks = [line for line in upgraded.daemon.log if " WARNING " in line or " ERROR " in line]
    assert [line for line in remarks if "ingestd.loop" not in line] == []  # on a busy machine


def test_old_records_are_unchanged(upgraded: Upgraded) -> None:
    assert upgraded.records[: len(upgraded.told["records"])] == upgraded.told["records"]


def test_keys_are_valid_or_not_as_before(upgraded: Upgraded) -> None:
    assert upgraded.statuses == {
        "public": 200, "declared": 200, "revoked": 401, "server": 200, "renewed": 200, "rotated": 200,
    }  # fmt: skip


def test_sessions_continue(upgraded: Upgraded) -> None:
    assert upgraded.sessions == {
        visitor: {**session, "isNew": False} for visitor, session in upgraded.told["sessions"].items()
    }


def test_a_message_that_comes_again_is_answered_as_before_and_stored_once(upgraded: Upgraded) -> None:
    assert upgraded.repeated == upgraded.told["sessions"]
    ids = [each["messageId"] for each in upgraded.records if each.get("messageId")]
    assert len(ids) == len(set(ids))


def test_links_apply(upgraded: Upgraded) -> None:
    before = {each["anonymousId"]: each["userId"] for each in upgraded.told["records"] if each["type"] == "identify"}
    new = upgraded.records[len(upgraded.told["records"]) :]
    views = [each for each in new if each["type"] == "event" and each["key"] == "Page View"]
    users = {each["anonymousId"]: each["userId"] for each in views}
    assert {visitor: users[visitor] for visitor in before} == before
    assert users[f"v{_NEW}"] is None


def test_each_order_is_attributed_once_by_the_touchpoints_of_before(upgraded: Upgraded) -> None:
    orders = {each["orderId"]: each for each in upgraded.records if each["type"] == "attribution"}
    assert len(orders) == sum(each["type"] == "attribution" for each in upgraded.records)
    assert orders[f"o-new-{_NEW}"]["touchpoint"]["name"] == f"c{_NEW}"
    assert orders["o-early"]["touchpoint"]["name"] == f"c{VISITORS - 2}"
    for each in FOUND:  # 0.1.0 knows campaigns only
        touch = orders[f"o-new-{each}"]["touchpoint"]
        came = next(record for record in upgraded.told["records"] if record["anonymousId"] == f"v{each}")
        if "campaign" in came["context"]:
            assert touch["name"] == f"c{each}"
        else:
            assert (touch["source"], touch["kind"]) == ("google", "referrer" if each == VISITORS - 3 else "click")


def test_a_refund_reverses_once_and_waits_for_its_order(upgraded: Upgraded) -> None:
    reversed_: dict[str, list[float]] = {}
    for each in upgraded.records:
        if each["type"] == "attribution_reversal":
            reversed_.setdefault(each["orderId"], []).append(each["value"]["revenue"])
    # The second and the third refund of o-0 reverse the rest of its 80.
    assert reversed_ == {"o-0": [30, 30, 20], "o-1": [30], "o-2": [30], "o-early": [10]}


def test_dead_letters_are_kept(upgraded: Upgraded) -> None:
    assert [each["id"] for each in upgraded.letters] == [each["id"] for each in upgraded.told["deadLetters"]]
    assert len(upgraded.letters) == 3


@pytest.mark.parametrize("sink", ["archive", "crm", "slow"])
def test_a_sink_gets_each_record_once(upgraded: Upgraded, sink: str) -> None:
    before, new = upgraded.told["delivered"][sink], upgraded.delivered(sink)
    assert len(new) == len(set(new))
    assert not set(before) & set(new)
    if sink == "archive":
        assert before + new == [each["id"] for each in upgraded.records]


def test_the_rest_of_a_person_is_found(upgraded: Upgraded) -> None:
    found = upgraded.command("forget", "--user", "u3", "--dry-run").split()
    assert {name: found[found.index(name) + 1] for name in ("links", "profiles", "visitors")} == {
        "links": "3", "profiles": "1", "visitors": "3",
    }  # fmt: skip
