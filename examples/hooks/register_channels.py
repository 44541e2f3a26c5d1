from collections.abc import Callable

from ingestd.api import hookimpl


@hookimpl
def register_channels(register: Callable[[str], None]) -> None:
    register("Shop window")
