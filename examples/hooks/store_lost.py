"""The store has lost data (docs/redis.md). Say in a few words, for operators, which data is missing."""

from ingestd.api import hookimpl
from ingestd.api.store import Store, state_key
from ingestd.api.times import now

COUNTRY = state_key("shop-tools-country", "", "")


@hookimpl
async def store_lost(store: Store) -> str | None:
    state = store.begin(now())
    await state.put(COUNTRY, "DE")
    await store.commit(state)
    return None
