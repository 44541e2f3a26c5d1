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
