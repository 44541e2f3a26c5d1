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
