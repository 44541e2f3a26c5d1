"""Lines on standard output, for whoever gave the command."""

from __future__ import annotations

import sys
from collections.abc import Iterable

__all__ = ["write"]


def write(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()  # what comes next may take its time
