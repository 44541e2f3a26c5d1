"""Absent entries do not count. `person.user_key(kind)` and `person.visitor_keys(kind)` are the keys of the data."""

from collections.abc import Mapping

from ingestd.api import hookimpl
from ingestd.api.privacy import Person
from ingestd.api.store import State


@hookimpl
async def forget_person(person: Person, state: State) -> Mapping[str, int]:
    wishes = 0
    for key in [*person.visitor_keys("wish-list", former=True), person.user_key("wish-list")]:
        if key is not None and await state.get(key) is not None:
            await state.delete(key)
            wishes += 1
    return {"wish lists": wishes}
