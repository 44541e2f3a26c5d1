"""Each section `[sinks.NAME]` gets one instance. docs/sink-contract.md has the rules."""

import sys
from collections.abc import Callable, Sequence

from ingestd.api import hookimpl
from ingestd.api.events import Record
from ingestd.api.sink import Sink


class StdoutSink(Sink):
    async def write(self, batch: Sequence[Record]) -> None:
        sys.stdout.writelines(f"{record.body.decode()}\n" for record in batch)
        sys.stdout.flush()


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("stdout", StdoutSink)
