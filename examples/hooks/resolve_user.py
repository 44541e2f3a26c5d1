"""Without any answer the event has no user."""

from ingestd.api import hookimpl
from ingestd.api.events import Event


@hookimpl
def resolve_user(event: Event) -> str | None:
    """The app of this shop sends the customer's number as the visitor."""
    kind, _, number = event.anonymous_id.partition(":")
    return number if kind == "customer" and number else None
