"""Log lines: one a line on standard error, with the time in UTC, readable by people and by journald."""

from __future__ import annotations

import logging
import time

__all__ = ["set_up_logs"]


def set_up_logs() -> None:
    """Send everything at INFO and above to standard error."""
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # At INFO Tornado quotes malformed headers as they came: of any length, and keys among them.
    logging.getLogger("tornado.general").setLevel(logging.WARNING)
