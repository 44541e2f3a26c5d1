"""A plugin that links visitors to users implements it, since only it knows visitors whose records have left the
journal. `store.scan(kind)` returns all entries of a kind, of all tenants, so their values must contain the tenant.
"""

import json

from ingestd.api import hookimpl
from ingestd.api.privacy import Visitors
from ingestd.api.store import Store

KIND = "loyalty-card"  # under the visitor: [tenant, number of the card]


@hookimpl
async def find_visitors(tenant: str, user_id: str, store: Store) -> Visitors:
    """The users of this shop are their loyalty cards."""
    wanted = json.dumps([tenant, user_id])
    found = [key.partition(":")[2] async for key, value in store.scan(KIND) if value == wanted]
    return Visitors(found)
