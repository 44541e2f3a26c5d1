"""A process that owns a SQLite file. Its arguments are the file and one of these words:

`serve`: opens the file like the daemon, until the standard input ends. `write`: the same, and appends one record
with one state after the other, each printed once it is acknowledged. `command`: opens the file like a command
does, stores one state, and prints the process that stored it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ingestd.api.events import Record
from ingestd.plugins.stores.sqlite import SqliteBackend


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def write(backend: SqliteBackend, writer: int) -> None:
    number = 0
    while True:
        name = f"{writer}-{number}"
        state = backend.store.begin(1000)
        await state.put(name, "x")
        await state.renew(f"of {writer}", "x", number)
        await backend.journal.commit([Record("event", 1000, name.encode())], state)
        say(name)
        number += 1


async def main(path: Path, what: str) -> None:
    backend = SqliteBackend(path, cache=100, busy_timeout=1.0)
    await backend.open(serving=what != "command")
    if what == "command":
        state = backend.store.begin(1000)
        await state.put("key", "value")
        await backend.store.commit(state)
        say(f"{os.getresuid()} {os.getresgid()} {os.getgroups()}")
    else:
        say("open")
        if what == "write":
            await asyncio.gather(*(write(backend, writer) for writer in range(16)))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
