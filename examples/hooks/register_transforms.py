"""The function gets each record that passes the filter, and again at every retry, replay and repeated write. A changed
`id` makes a dead letter of the record.
"""

from collections.abc import Callable
from typing import Any

from ingestd.api import hookimpl
from ingestd.api.sink import Transform


def without_email(record: dict[str, Any]) -> dict[str, Any] | None:
    if record["tenant"] == "test":
        return None
    record.get("traits", {}).pop("email", None)
    return record


@hookimpl
def register_transforms(register: Callable[[str, Transform], None]) -> None:
    register("without_email", without_email)
