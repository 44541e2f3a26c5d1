"""Checks of the units with a real systemd. `run` starts it as root in a container. It needs only Python."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

INGESTD = "/opt/ingestd/bin/ingestd"
CONFIG = Path("/etc/ingestd/ingestd.toml")
STATE = Path("/var/lib/private/ingestd/main")
SECRET = "a-secret-that-only-root-and-the-daemon-may-read"
TRACK = "/api/v1/analytics/track"
PUBLIC = {"Authorization": "Bearer a-public-key-of-the-shop"}

ALONE = """
[store]
url = "sqlite:///var/lib/ingestd/main/ingestd.db"
[plugins]
enabled = ["keys", "hmac_auth", "identity", "session", "blocking", "sqlite", "redis", "jsonl"]
[plugins.keys]

[[plugins.keys.declared]]
id = "a-public-key-of-the-shop"
kind = "public"
tenant = "shop"

[[plugins.keys.declared]]
id = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
kind = "server"
tenant = "shop"
grants = { CRM = ["ADMIN"] }
secret = { credential = "erp" }
"""
ARCHIVE = """
[sinks.archive]
type = "jsonl"
path = "/var/lib/ingestd/main/archive.jsonl"
"""
SHARED = (
    ALONE.replace("sqlite:///var/lib/ingestd/main/ingestd.db", "redis://127.0.0.1:6379/0")
    + """
[plugins.redis]
accept_loss = true
"""
)

# A third-party plugin that blocks the event loop once, at an event of a certain visitor.
BLOCKING = """
import os, time
from pathlib import Path
from ingestd.api import hookimpl

@hookimpl
def enrich(event, state):
    once = Path(os.environ["STATE_DIRECTORY"], "blocked-once")
    if event.anonymous_id == "blocks" and not once.exists():
        once.touch()
        time.sleep(3600)
"""

CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


# Helpers


def run(*command: str, fails: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode != 0) == fails, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def show(name: str, unit: str = "ingestd.service") -> str:
    return run("systemctl", "show", "--value", "--property", name, unit).strip()


def wait_until(condition: Callable[[], bool], patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)


def request(
    method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, port: int = 8080
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def event(visitor: str = "visitor", number: int = 0) -> bytes:
    return json.dumps({"key": "Page View", "anonymousId": visitor, "data": {"number": number}}).encode()


def track(visitor: str = "visitor", number: int = 0) -> int:
    return request("POST", TRACK, event(visitor, number), PUBLIC)[0]


def stored() -> list[int]:
    lines = run(INGESTD, "events", "export", "--type", "event").splitlines()
    return [json.loads(line)["data"]["number"] for line in lines]


@contextlib.contextmanager
def load(threads: int = 32) -> Iterator[tuple[list[int], list[str]]]:
    """Clients that send without a pause. Every second client keeps its connection.

    Yields the numbers answered 200, and the errors of the other events.
    """
    answered: list[int] = []
    lost: list[str] = []
    stopping = threading.Event()

    def send(thread: int) -> None:
        number = thread * 1_000_000
        connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=30)
        while not stopping.is_set():
            number += 1
            try:
                connection.request("POST", TRACK, event(f"visitor-{thread}", number), PUBLIC)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                lost.append(repr(error))
                connection.close()
            else:
                (answered.append(number) if answer.status == 200 else lost.append(str(answer.status)))
            if thread % 2:
                connection.close()
        connection.close()

    senders = [threading.Thread(target=send, args=(thread,)) for thread in range(1, threads + 1)]
    for sender in senders:
        sender.start()
    try:
        yield answered, lost
    finally:
        stopping.set()
        for sender in senders:
            sender.join()


def more(answered: list[int], count: int) -> None:
    """Waits until `count` more events are answered."""
    wanted = len(answered) + count
    wait_until(lambda: len(answered) >= wanted)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def drop_in(unit: str, text: str) -> None:
    path = Path(f"/etc/systemd/system/{unit}.d/test.conf")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    run("systemctl", "daemon-reload")


# The checks, in the order of their runs


@check
def the_units_start_from_a_fresh_installation() -> None:
    printed = run(INGESTD, "install-units")
    assert "installed: /etc/systemd/system/ingestd.service" in printed, printed
    assert "WARNING" not in printed, printed
    CONFIG.parent.mkdir()
    CONFIG.write_text(ALONE + ARCHIVE)
    (CONFIG.parent / "credentials").mkdir(mode=0o700)
    (CONFIG.parent / "credentials" / "erp").write_text(SECRET)
    (CONFIG.parent / "credentials" / "erp").chmod(0o600)
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--now", "ingestd.service")
    assert show("ActiveState") == "active"
    wait_until(lambda: re.fullmatch(r"serving: .*1 sink, \d+ events/s", show("StatusText")) is not None)
    assert track() == 200
    assert request("GET", "/readyz", port=9464) == (200, b"ok\n")


@check
def a_credential_reaches_only_the_daemon() -> None:
    body = event()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {"Authorization": "Bearer 6f9619ff-8b86-d011-b42d-00cf4fc964ff", "x-signature": signature}
    assert request("POST", "/api/v1/analytics/customer-events", body, headers)[0] == 200
    os.environ["CREDENTIALS_DIRECTORY"] = "/etc/ingestd/credentials"  # from now on for commands of root
    assert len(stored()) == 2


@check
def the_daemon_runs_in_a_sandbox_as_a_dynamic_user() -> None:
    pid = show("MainPID")
    assert Path(f"/proc/{pid}").stat().st_uid >= 61184
    assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    run("cp", "/bin/true", str(STATE / "true"))
    assert "Permission denied" in run("nsenter", "-t", pid, "-m", str(STATE / "true"), fails=True)
    (STATE / "true").unlink()
    metrics = request("GET", "/metrics", port=9464)[1].decode()
    for name in ("process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds"):
        assert f"\n{name} " in metrics, name


@check
def a_check_beside_the_daemon_finds_no_fault() -> None:
    run(INGESTD, "check")


@check
def restarts_under_load_lose_nothing() -> None:
    before = set(stored())
    with load() as (answered, lost):
        for _ in range(5):
            more(answered, 200)
            run("systemctl", "restart", "ingestd.service")
    assert lost == [], lost[:5]
    kept = stored()
    assert sorted(answered) == sorted(number for number in kept if number not in before)  # each event once
    say(f"        ({len(answered)} events, 5 restarts)")


@check
def a_daemon_with_a_hung_loop_is_restarted_and_leaves_its_traceback() -> None:
    drop_in("ingestd.service", "[Service]\nWatchdogSec=2s\n")
    run("systemctl", "restart", "ingestd.service")
    pid = show("MainPID")
    blocking = threading.Thread(target=_try_to_block)
    blocking.start()
    wait_until((STATE / "blocked-once").exists)
    assert track("waits") == 200
    blocking.join()
    assert show("MainPID") not in {"0", pid}
    assert show("NRestarts") == "1"
    log = run("journalctl", "--no-pager", "-u", "ingestd.service")
    assert "Watchdog timeout" in log
    assert 'blocking.py", line' in log


def _try_to_block() -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        track("blocks")


@check
def a_faulty_configuration_is_not_retried_for_ever() -> None:
    CONFIG.write_text("nonsense")
    run("systemctl", "restart", "ingestd.service", fails=True)
    assert (show("ActiveState"), show("ExecMainStatus")) == ("failed", "78")
    restarts = show("NRestarts")
    began = time.monotonic()

    def call() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            track()
        return show("ActiveState", "ingestd.socket") == "failed"

    wait_until(call, 30)  # requests start the service a few times, and are refused afterwards
    say(f"        (after {time.monotonic() - began:.0f} s of requests)")
    assert show("NRestarts") == restarts
    CONFIG.write_text(ALONE + ARCHIVE)
    run("systemctl", "start", "ingestd.service")
    assert track() == 200


@check
def a_reload_reports_whether_it_worked() -> None:
    run("systemctl", "reload", "ingestd.service")
    CONFIG.write_text("nonsense")
    run("systemctl", "reload", "ingestd.service", fails=True)
    CONFIG.write_text(ALONE + ARCHIVE)
    run("systemctl", "reload", "ingestd.service")
    assert "of the configuration is in force" in run(INGESTD, "reload")  # root's command finds the service
    assert track() == 200


@check
def the_drop_in_opens_outgoing_connections() -> None:
    run("systemctl", "start", "redis-server.service")
    CONFIG.write_text(SHARED)
    run("systemctl", "restart", "--no-block", "ingestd.service")
    wait_until(lambda: "in 'auto-restart'" in show("StatusText") or show("Result") == "exit-code")
    assert show("ExecMainStatus") == "75"  # Redis cannot be reached
    printed = run(INGESTD, "install-units", "--outgoing")
    assert "installed: /etc/systemd/system/ingestd.service.d/outgoing.conf" in printed
    assert "unchanged: /etc/systemd/system/ingestd.service" in printed
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", "ingestd.service")
    assert track() == 200


@check
def several_daemons_share_one_port_and_one_redis() -> None:
    run("systemctl", "disable", "--now", "ingestd.service", "ingestd.socket", "ingestd-ops.socket")
    run("systemctl", "enable", "--now", "ingestd@1.service", "ingestd@2.service")
    before = set(stored())
    with load() as (answered, lost):
        for instance in ("1", "2", "1", "2"):
            more(answered, 200)
            run("systemctl", "restart", f"ingestd@{instance}.service")
        more(answered, 200)
    assert lost == [], lost[:5]
    assert set(answered) == set(stored()) - before
    for port in (9461, 9462):
        text = request("GET", "/metrics", port=port)[1].decode()
        assert 'ingestd_events_total{endpoint="track",key="Page View",outcome="accepted"}' in text
    say(f"        ({len(answered)} events, 4 restarts of 2 daemons)")


@check
def a_store_for_one_daemon_is_refused_to_several() -> None:
    CONFIG.write_text(ALONE.replace("main/ingestd.db", "1/ingestd.db"))
    run("systemctl", "restart", "ingestd@1.service", fails=True)
    assert show("ExecMainStatus", "ingestd@1.service") == "78"
    assert "only one daemon can have it" in run("journalctl", "--no-pager", "-u", "ingestd@1.service")


def main() -> int:
    site = next(Path("/opt/ingestd/lib").glob("python3*/site-packages"))
    (site / "blocking.py").write_text(BLOCKING)
    metadata = site / "blocking-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: blocking\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[ingestd]\nblocking = blocking\n")
    failed = 0
    for each in CHECKS:
        name = each.__name__.replace("_", " ")
        try:
            each()
        except Exception:  # noqa: BLE001 - the next check runs after any failure
            failed += 1
            say(f"FAILED  {name}\n{traceback.format_exc()}")
            say(run("journalctl", "--no-pager", "--boot", "--lines", "30", "-u", "ingestd*"))
        else:
            say(f"ok      {name}")
    say(f"{failed} of {len(CHECKS)} checks failed" if failed else "all checks passed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
