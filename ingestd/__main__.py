"""The command as it is installed, and `python -m ingestd`."""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]


def main() -> int:
    """Run one command and return its exit code."""
    # Nearly all that is made at first are modules, which stay: to look for garbage in them, again and again as they
    # grow, would take as long again as half of a start; and at the end, when all goes, another fifth.
    gc.set_threshold(500_000)
    from ingestd.api.output import prepare

    prepare()
    from ingestd.cli.main import main as run

    try:
        return run()
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
