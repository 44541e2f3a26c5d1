"""Called after the end of the last consumer, with the store still open."""

import logging
from collections import Counter

from ingestd.api import hookimpl

log = logging.getLogger("shop_tools")
robots: Counter[str] = Counter()


@hookimpl
def shutdown() -> None:
    log.info("the robots of this run: %s", dict(robots))
