"""It is for a move to another number of partitions (docs/moving.md). A value that begins with `tenant_digest(tenant)`
needs no such text.
"""

from collections.abc import Collection, Mapping

from ingestd.api import hookimpl
from ingestd.api.store import Store


@hookimpl
def state_parts(store: Store) -> Mapping[str, Collection[str]] | None:
    return {"": ["prices", "stock"]}  # made by state_key("shop-tools", "", "prices")
