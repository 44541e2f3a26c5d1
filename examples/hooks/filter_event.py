from ingestd.api import hookimpl
from ingestd.api.events import Event


@hookimpl
def filter_event(event: Event) -> str | None:
    return "an employee" if (event.user_id or "").startswith("staff:") else None
