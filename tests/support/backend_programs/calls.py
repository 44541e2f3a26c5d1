"""Makes calls with the client for Python. Each line of the input is a call; each line printed is its result."""

import json
import sys
from typing import Any

from ingestd.client import Client, KeyRefused, QueueFull


def show(result: object) -> None:
    print(json.dumps(result), flush=True)  # noqa: T201 - the test reads it


def named(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"anonymousId": "anonymous_id", "userId": "user_id"}
    return {names.get(name, name): value for name, value in fields.items()}


host, key, secret, folder, given = sys.argv[1:]
options = json.loads(given)
if options.pop("httpx", False):
    import httpx

    options["http"] = httpx.Client
client = Client(
    host, key, secret, "shop", folder=folder, interval=0.01, **options,
    on_refused=lambda event, problem: show({"refused": event.get("messageId"), "code": problem["code"]}),
)  # fmt: skip
for line in sys.stdin:
    method, *arguments = json.loads(line)
    try:
        if method == "flush":
            show(client.flush(*arguments))
        else:
            first, second, fields = arguments
            show(getattr(client, method)(first, second, **named(fields)))
    except OSError:
        show({"error": "disk"})
    except (KeyRefused, QueueFull) as error:
        show({"error": type(error).__name__})
