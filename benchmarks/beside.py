"""A comparison of two configurations under the same load, in alternate rounds on the same core."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .load import load
from .servers import create_key, ingestd, on_core

__all__ = ["beside"]


def beside(configs: Sequence[str], bodies: Iterable[dict[str, Any]], rounds: int, seconds: int) -> None:
    """Print `/track` with the first configuration, with the second, and the ratios of their rounds."""
    lines = [json.dumps(body) for body in bodies]
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-"))) for _ in configs]
        with on_core(cores[0]):
            servers = [
                stack.enter_context(ingestd(folder, config)) for folder, config in zip(folders, configs, strict=True)
            ]
        for folder in folders:
            (folder / "bodies").write_text("\n".join(lines))
        keys = [create_key(folder) for folder in folders]
        time.sleep(2)  # the longest time until a daemon knows a new key
        sides = [*zip(servers, folders, keys, strict=True)]
        results: list[list[dict[str, float]]] = [[], []]
        with on_core(cores[-1]):
            for side in sides:
                load(*side, 1)
            for number in range(rounds):
                for index in (0, 1) if number % 2 else (1, 0):
                    results[index].append(load(*sides[index], seconds))
    pairs = [*zip(*results, strict=True)]
    for what in ("req/s", "CPU µs", "p99 ms"):
        on, off = (median(each[what] for each in side) for side in results)
        ratios = sorted(a[what] / b[what] for a, b in pairs)
        print(f"  {what:8} {on:8.1f} with, {off:8.1f} without: ratio {median(ratios):.3f}"
              f" ({ratios[0]:.2f} to {ratios[-1]:.2f})")  # fmt: skip
