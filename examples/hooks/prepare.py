from ingestd.api import hookimpl
from ingestd.api.events import Event, Request


@hookimpl
def prepare(event: Event, request: Request) -> str | None:
    """The shop's own monitoring is dropped; of other events the language of the browser is stored."""
    if request.headers.get("User-Agent", "").startswith("shop-monitoring/"):
        return "sent by our own monitoring"
    language = request.headers.get("Accept-Language", "").partition(",")[0]
    if language:
        event.context.setdefault("language", language[:35])
    return None
