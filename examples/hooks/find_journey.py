"""A `JourneyLead` has a tenant and visitors, or the position of the order's first record."""

from collections.abc import Sequence

from ingestd.api import hookimpl
from ingestd.api.journeys import JourneyLead, JourneyQuery
from ingestd.api.store import Store, state_key
from ingestd.api.times import now


@hookimpl
async def find_journey(query: JourneyQuery, store: Store) -> Sequence[JourneyLead] | None:
    if query.user is None or query.tenant is None:
        return None
    visitors = await store.begin(now()).window(state_key("shop-tools-tills", query.tenant, query.user))
    return [JourneyLead(query.tenant, [visitor for visitor, _ in visitors])]
