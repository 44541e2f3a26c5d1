"""The built-in `identity` limits `traits` here."""

from ingestd.api import hookimpl
from ingestd.api.errors import BadRequest, SchemaFault, SchemaViolation
from ingestd.api.events import Event


@hookimpl
def check_identity(event: Event) -> None:
    """Nobody's card number belongs into a profile."""
    if "cardNumber" in event.traits:
        violation = SchemaViolation("/traits/cardNumber", "not accepted")
        fault = SchemaFault("/traits/cardNumber", "not_accepted")
        raise BadRequest("card numbers are not accepted", code="invalid_envelope", errors=[violation], fault=fault)
