"""The script behind `make demo-traffic`: it sends a shop's events to the demo until Ctrl-C, and counts the answers.

The first requests are those that `make run` prints.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .demo import BASE, EXAMPLES, Demo, read_demo
from .demo_shop import Message, Shop

NOT_RUNNING = "the demo is not running{where}: start it with `make run` in another terminal, then run this again"
ANSWERS = {
    200: "accepted", 400: "invalid", 401: "key or signature wrong", 404: "unknown event key", 429: "over a rate limit",
    503: "not stored, try again",
}  # fmt: skip
TOLD_EVERY = 10.0


class Summary:
    """Counts of events by answer, and of accepted orders."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.answers: Counter[int] = Counter()
        self._orders: set[str] = set()
        self._returned: set[str] = set()

    def add(self, message: Message, status: int, answer: bytes) -> None:
        if status == 200 and message.path.endswith("/batch"):
            self.answers.update(result["status"] for result in json.loads(answer)["results"])
            return
        self.answers[status] += message.events
        if status == 200:
            body = json.loads(message.body)
            if body.get("key") == "Order Completed":
                self._orders.add(body["data"]["order_id"])
            elif body.get("key") in {"Order Refunded", "Order Cancelled"}:
                self._returned.add(body["data"]["order_id"])

    def line(self) -> str:
        refused = self.answers.total() - self.answers[200]
        return (
            f"{self.answers.total()} events, {refused} of them refused;"
            f" {len(self._orders)} orders, {len(self._returned)} of them refunded or cancelled"
        )

    def lines(self, demo: Demo) -> Iterator[str]:
        seconds = time.monotonic() - self.begun
        yield f"Sent in {seconds:.0f} s: {self.line()}."
        for status, number in self.answers.most_common():
            yield f"  {number:6}  {status} {ANSWERS.get(status, '')}".rstrip()
        yield f"The page:    http://{demo.ops_address}/"
        report = "attribution report --since 1h --by campaign"
        yield f"The report:  {Path(sys.executable).with_name('ingestd')} {report} --config {demo.config}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="folder of the demo (default: demo)")
    parser.add_argument("--rate", type=float, default=20.0, help="events a second (default: 20)")
    parser.add_argument("--seconds", type=float, help="stop after this time (default: Ctrl-C)")
    parser.add_argument("--events", type=int, help="stop after this many events (default: Ctrl-C)")
    parser.add_argument("--seed", type=int, help="the same seed sends the same shop again")
    arguments = parser.parse_args()
    if arguments.rate <= 0:
        parser.error("--rate must be greater than 0")
    try:
        demo = read_demo(arguments.folder)
    except FileNotFoundError:
        return fail(NOT_RUNNING.format(where=f", {arguments.folder}/ does not exist"))
    summary = Summary()
    try:
        send_all(demo, summary, arguments)
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    except (OSError, http.client.HTTPException) as error:
        if not summary.answers:
            return fail(NOT_RUNNING.format(where=f", nothing answers on http://{demo.address}"))
        print_summary(demo, summary)
        return fail(f"the demo no longer answers: {error!r}")
    print_summary(demo, summary)
    return 0


def fail(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 1


def print_summary(demo: Demo, summary: Summary) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in summary.lines(demo)))


def messages(seed: int | None) -> Iterator[Message]:
    for example in EXAMPLES:
        yield Message(example.path, json.dumps(example.body).encode(), example.key)
    yield from Shop(time.strftime("%m%d%H%M%S"), seed).messages()


def send_all(demo: Demo, summary: Summary, arguments: argparse.Namespace) -> None:
    """Send events at the given rate. Raises `OSError` if the demo does not answer."""
    connection = http.client.HTTPConnection(demo.address, timeout=10)
    due = told = time.monotonic()
    end = due + (arguments.seconds or math.inf)
    for message in messages(arguments.seed):
        time.sleep(max(0.0, min(due, end) - time.monotonic()))
        if time.monotonic() >= end or summary.answers.total() >= (arguments.events or math.inf):
            return
        status, answer = send(connection, demo, message)
        if not summary.answers:
            sys.stdout.write(
                f"Sending to http://{demo.address}  Watch it: http://{demo.ops_address}/  Stop with Ctrl-C.\n"
            )
        summary.add(message, status, answer)
        now = time.monotonic()
        if now - told >= TOLD_EVERY:
            sys.stdout.write(f"{summary.line()}\n")
            told = now
        sys.stdout.flush()
        due = max(due + message.events / arguments.rate, now - 1)  # catch up, but at most for a second


def send(connection: http.client.HTTPConnection, demo: Demo, message: Message) -> tuple[int, bytes]:
    if message.key is None:
        headers = {"authorization": "Bearer no-such-key"}
    else:
        headers = demo.headers(message.key, message.body)
        if not message.is_signed:
            del headers["x-signature"]
    try:
        return exchange(connection, message, headers)
    except (ConnectionError, http.client.RemoteDisconnected):
        connection.close()  # the daemon closes connections that are idle for long
        return exchange(connection, message, headers)


def exchange(connection: http.client.HTTPConnection, message: Message, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("POST", BASE + message.path, message.body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


if __name__ == "__main__":
    sys.exit(main())
