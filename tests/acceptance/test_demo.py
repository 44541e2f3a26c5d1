"""`make run` prints working commands and keeps keys and data. `make demo-traffic` sends the events of a shop."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ingestd.plugins.attribution.campaigns import Campaign
from tests.support.browser import Browser, Tab
from tests.support.clients import wait_until
from tests.support.daemon import PATIENCE, run_ingestd
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "scripts" / "demo.py"


class Demo:
    """The running demo. `printed` is its output before the daemon's log."""

    def __init__(self, folder: Path, port: int, ops_port: int, *, shop_port: int | None = None) -> None:
        self.folder, self.port, self.ops_port = folder, port, ops_port
        self.config = folder / "ingestd.toml"
        ports = ["--port", str(port), "--ops-port", str(ops_port)]
        script = [str(DEMO)]
        if shop_port is not None:
            script, ports = ["-m", "scripts.demo_pages"], [*ports, "--shop-port", str(shop_port)]
        command = [sys.executable, *script, "--folder", str(folder), *ports]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.process.stdout is not None
        self.printed = ""
        deadline = time.monotonic() + 4 * PATIENCE  # commands make the keys first
        while "ready: " not in self.printed:
            if time.monotonic() > deadline:
                self.process.kill()
                pytest.fail(f"the demo is not ready: {self.printed}")
            if select.select([self.process.stdout], [], [], 1)[0]:
                self.printed += os.read(self.process.stdout.fileno(), 65536).decode()

    def keys(self) -> dict[str, dict[str, str]]:
        keys: dict[str, dict[str, str]] = json.loads((self.folder / "keys.json").read_text())
        return keys

    def status(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ops_port}/status.json", timeout=20) as answer:
            return json.load(answer)

    def curl_lines(self) -> list[str]:
        return re.findall(r"^ *(curl .*)$", self.printed, re.MULTILINE)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def traffic(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command of `make demo-traffic` to its end."""
    command = [sys.executable, "-m", "scripts.demo_traffic", "--folder", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_printed_curl_lines_work_and_a_second_run_keeps_keys_and_data(tmp_path: Path) -> None:
    folder, ports = tmp_path / "demo", (free_port(), free_port())
    printed = []
    for run in (1, 2):
        demo = Demo(folder, *ports)
        lines = demo.curl_lines()
        answers = [subprocess.run(line, shell=True, capture_output=True, check=True).stdout for line in lines]
        assert demo.stop() == 0
        assert [answer.splitlines()[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 4
        printed.append(lines)
        exported = run_ingestd("events", "export", config=folder / "ingestd.toml").stdout.splitlines()
        assert len([line for line in exported if '"type":"attribution"' not in line]) == 4 * run
    assert printed[0] == printed[1]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "keys.json").stat().st_mode & 0o777 == 0o600


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Demo, str]]:
    """A demo after a shop's events, and the output about them."""
    folder = tmp_path_factory.mktemp("visited") / "demo"
    demo = Demo(folder, free_port(), free_port())
    done = traffic(folder, "--rate", "1000", "--events", "500", "--seed", "1")
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: not any(each["pending"] for each in demo.status()["consumers"]))
    yield demo, done.stdout
    assert demo.stop() == 0


def test_the_address_of_the_page_comes_first(visited: tuple[Demo, str]) -> None:
    demo, _ = visited
    assert demo.printed.splitlines()[0].endswith(f" http://127.0.0.1:{demo.ops_port}/")


def label(row: Mapping[str, Any]) -> str:
    return Campaign(row["kind"], tuple(row[name] for name in ("source", "medium", "name"))).label


def test_the_report_and_the_page_show_the_events_of_the_shop(visited: tuple[Demo, str]) -> None:
    demo, _ = visited
    report = run_ingestd("attribution", "report", "--since", "1h", "--json", "--by", "campaign", config=demo.config)
    rows = [row for row in map(json.loads, report.stdout.splitlines()) if row["orders"]]
    campaigns = {(row["currency"], label(row)): row["net"] for row in rows}
    assert len(campaigns) >= 4
    assert sum(row["orders"] for row in rows if row["kind"] == "campaign") >= 5
    assert sum(row["reversed"] for row in rows) > 0
    time.sleep(1.1)  # the daemon caches the status for a second
    shown = demo.status()
    last_touch = [table for table in shown["panels"][0]["tables"] if table["choice"] == "last_touch"]
    nets = {(table["title"], row[0]): row[4] for table in last_touch for row in table["rows"]}
    assert nets == pytest.approx(campaigns, abs=0.006)
    assert [each["name"] for each in shown["panels"][0]["filters"]] == ["period", "tenant"]
    assert {"accepted", "duplicate", "invalid", "unknown_key", "unauthorized"} <= {*shown["events"]["byOutcome"]}
    assert {each["operation"] for each in shown["latency"]} >= {"track", "track-batch", "customer-events", "identify"}


def worth(value: Mapping[str, Any]) -> Decimal:
    return Decimal(str(value["revenue"] if value["revenue"] is not None else value["total"] or 0))


def test_channels_add_up_to_the_journal(visited: tuple[Demo, str]) -> None:
    """The sums of the report equal those of an independent count over the exported records."""
    demo, _ = visited
    records = [json.loads(line) for line in run_ingestd("events", "export", config=demo.config).stdout.splitlines()]
    printed = run_ingestd("attribution", "report", "--since", "1h", "--json", "--by", "channel", config=demo.config)
    rows = [json.loads(line) for line in printed.stdout.splitlines()]
    sessions: dict[str, list[Any]] = defaultdict(list)
    money: dict[tuple[str, str], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    orders = {}
    superseded = {record["attributionId"] for record in records if record.get("reason") == "superseded"}
    for record in records:
        if {record["id"], record.get("attributionId")} & superseded:
            continue
        if record["type"] in {"event", "identify"}:
            sessions[record["sessionId"]].append(record)
        elif record["type"] == "attribution":
            touchpoint, value = record["touchpoint"], record["value"]
            orders[record["id"]] = key = (touchpoint["channel"] if touchpoint else "Direct", value["currency"])
            amounts = [Decimal(1), worth(value), Decimal(0)]
            money[key] = [a + b for a, b in zip(money[key], amounts, strict=True)]
        elif record["type"] == "attribution_reversal":
            money[orders[record["attributionId"]]][2] += worth(record["value"])
    found = {(row["channel"], row["currency"]): row for row in rows}
    assert len(money) >= 4
    assert {key: [row["orders"], row["revenue"], row["reversed"]] for key, row in found.items() if row["orders"]} == {
        key: [float(each) for each in sums] for key, sums in money.items()
    }
    assert sum(row["sessions"] or 0 for row in rows) == len(sessions)
    visited_by = {each["anonymousId"] for some in sessions.values() for each in some}
    assert max(row["visitors"] or 0 for row in rows) <= len(visited_by) <= sum(row["visitors"] or 0 for row in rows)


def test_the_summary_tells_how_events_were_answered(visited: tuple[Demo, str]) -> None:
    _, printed = visited
    answers = {int(status): int(number) for number, status in re.findall(r"^ +(\d+)  (\d+) ", printed, re.MULTILINE)}
    assert {200, 400, 401, 404} <= {*answers}
    match = re.search(r"Sent in \d+ s: (\d+) events, (\d+) of them refused; (\d+) orders, (\d+) of them", printed)
    assert match is not None
    sent, refused, orders, returned = map(int, match.groups())
    assert (sent, refused) == (sum(answers.values()), sum(answers.values()) - answers[200])
    assert sent >= 500
    assert 0 < returned < orders


def test_traffic_continues_until_it_is_interrupted_and_ends_with_a_summary(visited: tuple[Demo, str]) -> None:
    demo, _ = visited
    command = [sys.executable, "-m", "scripts.demo_traffic", "--folder", str(demo.folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as printed:
        assert printed.readline().startswith("Sending to http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert "Sent in " in printed.read()
    assert process.wait(20) == 0


def test_the_names_in_the_readme_are_in_the_demo(visited: tuple[Demo, str]) -> None:
    """The commands of the README name sinks, orders and users that exist in the demo."""
    demo, _ = visited
    readme = (ROOT / "README.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL) for line in block.splitlines()]
    commands = [line.split() for line in lines if re.match("ingestd (sinks|attribution|forget) ", line)]
    assert len(commands) == 6
    for command in commands:
        done = run_ingestd(*command[1:], config=demo.config)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout
    (example,) = re.findall(r"curl http\S+ -H .*?(?=\n```)", readme, re.DOTALL)
    there = example.replace("127.0.0.1:8080", f"127.0.0.1:{demo.port}").replace("$KEY", demo.keys()["public"]["id"])
    answer = subprocess.run(f"{there} --no-progress-meter", shell=True, capture_output=True, check=True).stdout
    assert json.loads(answer)["success"] is True


def test_traffic_without_a_running_demo_names_the_command_to_start_one(tmp_path: Path) -> None:
    for folder in (tmp_path / "demo", stopped_demo(tmp_path / "stopped")):
        done = traffic(folder)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("the demo is not running, ")
        assert "start it with `make run` in another terminal" in line


def stopped_demo(folder: Path) -> Path:
    folder.mkdir()
    port = free_port()
    (folder / "ingestd.toml").write_text(f'[http]\nlisten = "127.0.0.1:{port}"\n[ops]\nlisten = "127.0.0.1:{port}"\n')
    (folder / "keys.json").write_text(json.dumps({name: {"id": "k", "secret": "s"} for name in ("public", "server")}))
    return folder


@pytest.fixture(scope="module")
def selling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Demo, str]]:
    """The demo with its shop, and the shop's address."""
    port = free_port()
    demo = Demo(tmp_path_factory.mktemp("selling") / "demo", free_port(), free_port(), shop_port=port)
    yield demo, f"http://127.0.0.1:{port}"
    assert demo.stop() == 0


def go(tab: Tab, selector: str, title: str) -> None:
    """Click, and wait for the page with this title."""
    tab.wait_for(f"document.querySelector({json.dumps(selector)}) !== null")
    tab.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
    tab.wait_for(f"document.title.startsWith({json.dumps(title)}) && document.querySelector('main h1') !== null")


def buy(tab: Tab) -> str:
    """Buy a kettle, from the list of the products on. Returns the order's id."""
    go(tab, "a[href*='id=p-2']", "Gooseneck kettle")
    tab.evaluate("document.querySelector('main button').click()")
    go(tab, "nav a", "Cart")
    go(tab, "main button", "Thank you")
    order: str = tab.evaluate("document.querySelector('main strong').textContent")
    return order


def test_the_demo_shop_leads_from_a_campaign_link_to_the_journey_of_the_order(
    selling: tuple[Demo, str], browser: Browser
) -> None:
    demo, shop = selling
    assert f"{shop}/\n" in demo.printed
    assert f"http://127.0.0.1:{demo.ops_port}/\n" in demo.printed
    tab = browser.tab()
    tab.open(f"{shop}/")
    go(tab, "a[href*='utm_source=newsletter']", "Kitchen")
    tab.wait_for("location.search.includes('newsletter') && document.querySelector('main a') !== null")
    order = buy(tab)
    wait_until(lambda: bool(attributed(demo)))
    assert attributed(demo) == [("newsletter", "email", "autumn")]
    tab.wait_for("document.querySelector('#sent').textContent.includes('Page View · newsletter · stored')")
    assert tab.complaints == []
    tab.evaluate("document.querySelector('main a').click()")
    tab.wait_for("document.querySelector('#journey-orders')?.textContent.includes('newsletter / email / autumn')")
    assert tab.evaluate("location.href") == f"http://127.0.0.1:{demo.ops_port}/#journey?order={order}"
    assert tab.evaluate("document.querySelector('#journey-orders dd').textContent") == order
    tab.close()
    (line,) = re.findall(r"^ *(export PATH=.*)$", demo.printed, re.MULTILINE)
    command = f"{line}; ingestd attribution show {order}"
    told = subprocess.run(["bash", "-c", command], cwd="/", capture_output=True, text=True, check=True).stdout
    assert "newsletter" in told


def test_the_demo_shop_sells_without_ingestd_and_a_decision_made_then_counts_later(
    selling: tuple[Demo, str], browser: Browser
) -> None:
    demo, shop = selling
    tab = browser.tab()
    tab.call("Network.setBlockedURLs", urls=[f"*:{demo.port}/*"])
    tab.open(f"{shop}/")
    go(tab, "a[href='/']", "Kitchen")
    order = buy(tab)
    assert order.startswith("demo-")
    tab.wait_for("document.getElementById('waiting').textContent === 'ingestd is away. The shop works without it.'")
    tab.evaluate("[...document.querySelectorAll('#choices button')].at(-1).click()")
    assert tab.evaluate("document.getElementById('state').textContent") == "Tracking is off: you have said no."
    tab.call("Network.setBlockedURLs", urls=[])
    before = len(tab.requests)
    tab.open(f"{shop}/")
    tab.wait_for("window.ingestd && !Array.isArray(ingestd.calls)")  # the client has loaded
    go(tab, "a[href*='id=p-1']", "Stoneware mug")
    tab.wait_for("window.ingestd && !Array.isArray(ingestd.calls)")
    tab.evaluate("document.querySelector('main button').click()")
    assert tab.evaluate("[ingestd.anonymousId(), document.querySelectorAll('#sent li').length]") == [None, 0]
    assert tab.evaluate("document.getElementById('waiting').textContent") == "Nothing is sent: you have said no."
    assert not any("/batch" in url for url in tab.requests[before:])
    tab.evaluate("document.querySelector('#choices button').click()")
    tab.evaluate("document.querySelector('main button').click()")
    tab.wait_for("document.querySelector('#sent').textContent.includes('Product Added · Stoneware mug · stored')")
    tab.close()


def test_the_demo_shop_opens_where_the_browser_keeps_nothing(selling: tuple[Demo, str], browser: Browser) -> None:
    tab = browser.tab()
    tab.run_first("Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('denied') } })")
    tab.open(f"{selling[1]}/?page=product&id=p-1")
    tab.wait_for("document.querySelector('main button') !== null")
    tab.evaluate("document.querySelector('main button').click()")
    assert tab.evaluate("document.querySelector('nav a').textContent") == "Cart (1)"
    tab.close()


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_demo_shop_fits_and_can_be_read(width: int, selling: tuple[Demo, str], browser: Browser) -> None:
    _, shop = selling
    tab = browser.tab(width=width)
    tab.run_first("""if (location.port) localStorage.setItem("shop.cart", '{"p-1": 99, "p-2": 1}')""")
    for query in ("", "?page=product&id=p-2", "?page=cart", "?page=thanks&order=demo-1795897941113"):
        tab.open(f"{shop}/{query}")
        tab.wait_for(f"location.search === {json.dumps(query)} && document.querySelector('main h1') !== null")
        assert tab.evaluate("document.documentElement.scrollWidth") == width, query
        assert tab.violations() == [], query
    tab.close()


def attributed(demo: Demo) -> list[tuple[str, str, str]]:
    """Source, medium and name of the campaigns of all attributed orders."""
    printed = run_ingestd("events", "export", "--type", "attribution", config=demo.config).stdout
    touches = [json.loads(line)["touchpoint"] for line in printed.splitlines()]
    return [(touch["source"], touch["medium"], touch["name"]) for touch in touches]
