"""What is worth knowing:

- A batch comes with the `endpoint` of a single event, and `body` is the whole batch. So a plugin that checks signatures
  needs no code for batches.
- `request.peer` is the client's address, also behind a trusted proxy. An IPv4-mapped address is an IPv4 address, and
  there is never a zone.
- Look up the key first, since decoding and hashing megabytes takes milliseconds. `load_body()` decodes on another
  thread, and `small_body(most)` never decodes more.
- `replace_body(body)` stores another form of the body, the one that was signed.
- The `key_id` of the `Principal` is never a secret.
"""

import hmac

from ingestd.api import hookimpl
from ingestd.api.errors import Unauthorized
from ingestd.api.events import Principal, Request

TOKENS = {"shop": "a long secret token"}


@hookimpl
def authenticate(request: Request) -> Principal | None:
    tenant, _, token = request.headers.get("x-shop-token", "").partition(":")
    if tenant not in TOKENS:
        return None  # perhaps another plugin knows who this is
    if not hmac.compare_digest(TOKENS[tenant].encode(), token.encode()):
        raise Unauthorized("The token in x-shop-token is not valid.")
    return Principal(tenant, key_id=f"token of {tenant}")
