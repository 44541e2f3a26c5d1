"""What a valid configuration risks: connections that somebody could read or fake, and filters that let traits pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ingestd.api.check_result import CheckResult
from ingestd.api.options import has_credentials, password_in_clear
from ingestd.api.sink import Sink
from ingestd.config import Config
from ingestd.delivery.options import FilterOptions

__all__ = ["filter_risks", "show_risks", "sink_risks", "url_risks"]

_WITH_TLS = {"https", "rediss", "tls"}


def url_risks(config: Config) -> Iterator[str]:
    """The risks of the URLs of store and journal."""
    for option, url in (("store.url", config.store.url), ("journal.url", config.journal.url)):
        if url and has_credentials(url) and url.partition(":")[0].partition("+")[0] not in _WITH_TLS:
            yield from password_in_clear(option, url, "use the URL's scheme with TLS, such as rediss")


def show_risks(risks: Iterable[str]) -> Iterator[CheckResult]:
    for risk in risks:
        option, _, text = risk.partition(": ")
        yield CheckResult(option, text, "warning")


def sink_risks(sink: Sink) -> Sequence[CheckResult]:
    """The risks of a sink. A plugin may raise anything, which stops no start, and so is a warning too."""
    try:
        return [*show_risks(sink.risks())]
    except Exception as error:  # noqa: BLE001
        return [CheckResult(sink.name, f"its risks could not be read: {error!r}", "warning")]


def filter_risks(name: str, options: FilterOptions) -> Iterator[str]:
    """The risks of a sink's filter: ingestd 0.2 left out every identify request if a filter had keys."""
    if options.keys is not None and "identify" in (options.types or ()):
        text = "keys limits events only, so all persons' traits pass; remove identify from types unless you want them"
        yield f"sinks.{name}.filter: {text}"
