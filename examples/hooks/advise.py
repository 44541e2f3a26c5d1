"""A `CheckResult` of status `broken` or `unavailable` makes `ingestd check` fail, and a `warning` is counted; most
advice needs neither.
"""

from collections.abc import Sequence

from ingestd.api import hookimpl
from ingestd.api.check_result import CheckResult
from ingestd.api.store import Store, state_key
from ingestd.api.times import now

COUNTRY = state_key("shop-tools-country", "", "")


@hookimpl
async def advise(store: Store) -> Sequence[CheckResult] | None:
    if await store.begin(now()).get(COUNTRY) is not None:
        return None
    return [CheckResult("shop_tools.country", "no country is set, so prices are shown without tax")]
