"""The entry point of the installed command `ingestd` and of `python -m ingestd`."""

from __future__ import annotations

import gc
import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Run one command and return its exit code."""
    # Most objects of a start are modules, which stay. Searching them for garbage would add half the time of a start,
    # and another fifth at the end.
    gc.set_threshold(500_000)
    if "serve" in sys.argv:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # until the daemon can reload; by default it kills
    try:
        from ingestd.support.streams import prepare_streams

        prepare_streams()
        from ingestd.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # while modules are imported, which takes seconds on a busy machine
        return 130
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
