"""Raise `Limited` with `retry_after`, in seconds, to answer 429. Do not read `request.body`, because decoding costs
time.
"""

from ingestd.api import hookimpl
from ingestd.api.errors import Limited
from ingestd.api.events import Request

closed = {"203.0.113.7"}


@hookimpl
def screen(request: Request) -> None:
    if request.peer in closed:
        raise Limited("This address may come again tomorrow.", retry_after=86400)
