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
