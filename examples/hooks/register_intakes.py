"""The built-in plugin `segment` (docs/intakes.md) uses this hook.

- An `Intake` that looks for the key in bodies (`credential_members`) lets strangers make the daemon unpack up to
  `[http] max_batch_body`.
- A batch counts as if each message had the members of its `envelope` (docs/trust.md).
- `Translation.read` may return several messages: the order of a shop becomes an order and traits of its customer. They
  are stored in one commit and have one result. A rate counts the message once.
- `Translation.check` compares a message with one of `Intake.schemas`. Its error has JSON pointers into the message as
  it was sent. A platform that must not see an error gets 200 from `answer`; the message is counted as `invalid` all the
  same.
- `visitor_of_user` of `ingestd.api.intake` derives the visitor of events that name a user only.
- `begin_import` translates messages from files (`ingestd events import`). `--state` merges files by the `receivedAt` or
  `timestamp` of messages.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ingestd.api import hookimpl
from ingestd.api.errors import Refused
from ingestd.api.events import Endpoint, Principal, Request, Session
from ingestd.api.intake import Intake, Message, Route, Translation


class TillIntake(Intake):
    """Tills send their sales: {"sales": [{"till": "t-7", "receipt": "r-1", "cents": 4000}]}."""

    endpoint = Endpoint("till", is_public=True)
    routes = (Route("/till/sales", batch="sales"),)

    def credential(self, request: Request, body: Mapping[str, Any] | None) -> str | None:
        return request.headers.get("X-Till-Key")

    def begin(
        self, request: Request, principal: Principal, envelope: Mapping[str, Any], keys: frozenset[str]
    ) -> Translation:
        return TillTranslation()


class TillTranslation(Translation):
    def read(self, index: int, message: dict[str, Any], raw: bytes) -> Message:
        receipt, cents = message.get("receipt"), message.get("cents")
        data = {"order_id": receipt, "total": cents / 100 if isinstance(cents, int) else cents, "currency": "EUR"}
        body = {"key": "Order Completed", "data": data, "anonymousId": message.get("till"), "messageId": receipt}
        return Message("event", body, relayed=True)

    def answer(self, results: Sequence[Session | Refused]) -> bytes:
        taken = [not isinstance(result, Refused) for result in results]
        return json.dumps({"taken": taken}).encode()


@hookimpl
def register_intakes(register: Callable[[Intake], None]) -> None:
    register(TillIntake())
