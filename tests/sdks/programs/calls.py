"""Makes the calls of standard input with an SDK for Python. Each line is a JSON array of [method, message].

At the end of the input it flushes, and prints the failures as a JSON array.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from typing import Any


def send(analytics: Any) -> None:
    """`analytics` is the SDK's module, with its settings."""
    failures: list[str] = []
    analytics.on_error = lambda error, _: failures.append(str(error))
    for line in sys.stdin:
        for method, message in json.loads(line):
            if "timestamp" in message:
                message["timestamp"] = datetime.fromisoformat(message["timestamp"])
            getattr(analytics, method)(**{_snake_case(name): value for name, value in message.items()})
    analytics.shutdown()
    sys.stdout.write(json.dumps(failures))


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)
