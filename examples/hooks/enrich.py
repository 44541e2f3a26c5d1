"""Change `data`, `traits`, `context`, `extra`, `timestamp`, `user_id` and `dispatch_id`, and nothing else. Values must
stay JSON. All data goes to every sink. So remove personal data here or in `prepare`, rather than in a sink.
"""

from urllib.parse import urlsplit, urlunsplit

from ingestd.api import hookimpl
from ingestd.api.events import Event


@hookimpl
def enrich(event: Event) -> None:
    """Never store what stands in the query of a page's address."""
    page = event.context.get("page")
    if isinstance(page, dict) and isinstance(page.get("url"), str):
        try:
            page["url"] = urlunsplit(urlsplit(page["url"])._replace(query="", fragment=""))
        except ValueError:  # not an address
            del page["url"]
