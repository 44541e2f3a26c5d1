"""A flood of batches: how many are accepted, and the effect on single events, a sink and attribution.

64 connections send batches for half a minute, and 4 connections send single events. The server, on SQLite, has one
core, and the load has the other. Two periods of six seconds are measured, in the burst at the beginning and at the end.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from .beside import Program, started
from .load import BATCH, CONNECTIONS, Load, load
from .servers import Server

FLOOD = Load(batch=BATCH)
SINGLE = Load(connections=4, pause=5)
LASTS = 6  # length of a measurement in seconds
IN_THE_BURST = 2  # start of the first measurement, in seconds of the load


class Sample(NamedTuple):
    at: float
    events: float
    """Number of answered events."""
    sink: float
    """Age in seconds of the oldest record that is not in the sink."""
    attribution: float
    """Number of records that attribution has not processed."""


def sample(server: Server) -> Sample:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ops_port}/metrics") as answer:
        text = answer.read().decode()
    found = [each for family in text_string_to_metric_families(text) for each in family.samples]
    of_attribution = [each for each in found if each.labels.get("consumer") == "attribution"]
    return Sample(
        time.monotonic(),
        sum(each.value for each in found if each.name == "ingestd_events_total"),
        sum(each.value for each in found if each.name == "ingestd_sink_oldest_pending_seconds"),
        sum(each.value for each in of_attribution if each.name == "ingestd_consumer_pending"),
    )


def show(what: str, before: Sample, after: Sample, single: dict[str, float]) -> None:
    seconds = after.at - before.at
    print(
        f"  {what}: {(after.events - before.events) / seconds:.0f} events/s;"
        f" single events p50 {single['p50 ms']:.1f} ms, p99 {single['p99 ms']:.1f};"
        f" the sink {after.sink:.1f} s behind, attribution {after.attribution:.0f} records,"
        f" {(after.attribution - before.attribution) / seconds:+.0f} a second"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30, help="duration of the flood, at least 20 (default 30)")
    seconds = max(20, parser.parse_args().seconds)
    print(f"flood: batches of {BATCH} on {CONNECTIONS} connections, single events on {SINGLE.connections}; {seconds} s")
    with started([Program("ingestd")]) as [side], ThreadPoolExecutor() as threads:
        begun = time.monotonic()
        flood = threads.submit(load, *side, seconds, FLOOD)
        measured = []
        for when in (IN_THE_BURST, seconds - LASTS - 1):
            time.sleep(max(0, begun + when - time.monotonic()))
            before = sample(side.server)
            single = threads.submit(load, *side, LASTS, SINGLE)  # ends when all events are processed
            time.sleep(LASTS)
            measured.append((before, sample(side.server), single))
        failed = flood.result()["failed"] + sum(single.result()["failed"] for *_, single in measured)
        for what, (before, after, single) in zip(("burst", "flood"), measured, strict=True):
            show(what, before, after, single.result())
    print(f"failed requests: {failed:.0f}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
