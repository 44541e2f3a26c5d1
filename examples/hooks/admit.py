"""`request.events` is the number of events to count: a batch is admitted whole or not at all. Count requests without a
`principal` by their `peer`: then too many get 429, and no 401. The built-in `rate_limit` (docs/rate-limiting.md) uses
`screen` and this hook only.
"""

import time

from ingestd.api import hookimpl
from ingestd.api.errors import Limited
from ingestd.api.events import Principal, Request

PAUSE = 0.1
last: dict[str, float] = {}


@hookimpl
def admit(request: Request, principal: Principal | None) -> None:
    """The trial tenant sends ten times a second at most."""
    if principal is not None and principal.tenant == "trial":
        now = time.monotonic()
        if now < last.get("trial", 0.0) + PAUSE:
            raise Limited("The trial takes ten events a second.", retry_after=1)
        last["trial"] = now
