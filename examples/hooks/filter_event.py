"""Later plugins are not called. `prepare` and this hook are the only exceptions to "a 200 means stored". A filter that
needs neither user nor session belongs in `prepare`.
"""

from ingestd.api import hookimpl
from ingestd.api.events import Event


@hookimpl
def filter_event(event: Event) -> str | None:
    return "an employee" if (event.user_id or "").startswith("staff:") else None
