"""Called in `ingestd serve`, before any request. It may take two minutes. After two seconds, the log says `waits for
plugin X`. At the limit, the start ends with exit code 75. A `shutdown` may take ten seconds. The limits hold for a
plugin that blocks the event loop, too.

Raising stops the start: with exit code 78 after a `ConfigError`, and 75 (try again) after `Unavailable`. It is 75 after
an `OSError` and 78 after any other exception, both with a traceback.
"""

import asyncio
from pathlib import Path

from prometheus_client import Gauge

from ingestd.api import hookimpl
from ingestd.api.errors import ConfigError
from ingestd.api.hookspecs import Daemon

FILE = Path("/usr/share/dict/words")
words: set[str] = set()


async def keep_fresh(size: Gauge) -> None:
    while True:
        words.update((await asyncio.to_thread(FILE.read_text)).split())
        size.set(len(words))
        await asyncio.sleep(60)


@hookimpl
def startup(daemon: Daemon) -> None:
    if not FILE.exists():
        raise ConfigError(f"{FILE} is missing; install the package wamerican")
    size = Gauge("ingestd_words_known", "Words in the list.", registry=daemon.registry)
    daemon.watch(keep_fresh(size), name="words: keep fresh")
