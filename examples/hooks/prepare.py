"""In a batch, `request` is that of the batch. Read the event, not `request.body`. The built-in `bots` and `scrub` use
this hook.

- A new `anonymous_id` is another visitor, with another session and link. Fields that the contract does not name stay
  unchanged, and values stay JSON.
- An event that is dropped reaches no later plugin. The answer has the `sessionId` that the caller sent, or a random one
  (`isNew` true). The `messageId` may come again. Rate limits have counted the request already.
- `BadRequest` or another `Refused` error refuses an event.
"""

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
