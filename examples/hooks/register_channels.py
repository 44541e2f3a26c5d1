"""It lets the option `filter` of sinks name the plugin's channels."""

from collections.abc import Callable

from ingestd.api import hookimpl


@hookimpl
def register_channels(register: Callable[[str], None]) -> None:
    register("Shop window")
