"""Everything ingestd raises on purpose.

::

    IngestdError
    ├── ConfigError          the start stops, exit 78
    ├── CommandError         a command cannot do what it was asked, exit 1
    ├── Conflict             a state changed under the command that read it
    ├── Claimed              what was to be claimed is somebody's already
    ├── NotHolder            another daemon goes on with a consumer's place
    ├── SinkRetry            raised by a sink: it has trouble of its own, whatever the records are
    ├── SinkReject           raised by a sink: it never takes these records of the batch
    ├── SinkFailure          a call of a sink failed, and a record may be the reason
    └── Refused              the caller's answer is this problem
        ├── BadRequest           400
        ├── Unauthorized         401
        ├── Forbidden            403
        ├── NotFound             404
        │   └── UnknownKey
        ├── MethodNotAllowed     405
        ├── TimedOut             408
        ├── TooLarge             413
        ├── UnsupportedEncoding  415
        ├── Limited              429
        ├── HeadersTooLarge      431
        ├── Failed               500
        └── Unavailable          503
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from .outcomes import Outcome

__all__ = [
    "BadRequest",
    "Claimed",
    "CommandError",
    "ConfigError",
    "Conflict",
    "Failed",
    "Forbidden",
    "HeadersTooLarge",
    "IngestdError",
    "Limited",
    "MethodNotAllowed",
    "NotFound",
    "NotHolder",
    "Refused",
    "SchemaFault",
    "SchemaViolation",
    "SinkFailure",
    "SinkReject",
    "SinkRetry",
    "Stale",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnknownKey",
    "UnsupportedEncoding",
    "reason_of",
    "storable",
]


_MOST_TOLD = 500  # characters


class IngestdError(Exception):
    """Base of all errors ingestd raises on purpose."""


class ConfigError(IngestdError):
    """The daemon must not start like this. The message names the option or file, and the cure."""


class CommandError(IngestdError):
    """A command cannot do what it was asked."""


class Conflict(IngestdError):
    """What a command read has changed before its writes were applied; nothing was written."""


class Claimed(IngestdError):
    """Somebody else has the claim that an append was to make, with this value; nothing was appended."""

    def __init__(self, value: str) -> None:
        super().__init__("this has been claimed already")
        self.value = value


class NotHolder(IngestdError):
    """A consumer's place has passed to another daemon, or the journal has changed behind it; nothing was written."""


class SinkRetry(IngestdError):
    """The sink knows that the trouble is its own: it is full, read-only, over a quota, starting, without a leader.

    The batch is written again, after `after` seconds if given, until the sink takes it. This never counts against a
    record. Any other exception may be a record's fault and counts, so a sink that is not sure raises another one.
    """

    def __init__(self, message: str, *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class SinkReject(IngestdError):
    """The sink will never take some records of the batch: `reasons` maps their index to why.

    The others of the batch are written again, without these, whether the sink has them or not.
    """

    takes: ClassVar[str] = 'SinkReject takes {index: reason}, such as {0: "too long"}; 0 is the first of the batch'

    def __init__(self, reasons: Mapping[int, str]) -> None:
        if not isinstance(reasons, Mapping):
            raise TypeError(f"{self.takes}, not a value of the type {type(reasons).__name__}")
        super().__init__(f"{len(reasons)} records rejected")
        self.reasons = reasons


class SinkFailure(IngestdError):
    """A call of a sink failed, and a record may be the reason.

    It counts against the records as any other exception does. Delivery raises it for calls that take too long or
    break the contract. A sink may raise it where the message should be logged without a traceback. The batch is
    written again, after `after` seconds if given.
    """

    def __init__(self, message: str, *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class SchemaViolation(NamedTuple):
    """One fault of a request body: where (a JSON pointer, RFC 6901) and what."""

    pointer: str
    message: str


class SchemaFault(NamedTuple):
    """Where a body breaks its schema, and how. Metrics show both, so no part of them is the caller's choice."""

    pointer: str
    """A JSON pointer of names in the schema."""
    reason: str
    """The keyword of JSON Schema, or a word for a rule that has none."""


class Refused(IngestdError):
    """The request is not accepted; `detail` tells the caller why.

    Metrics show `fault`, or `code` where there is none.
    """

    status: ClassVar[int]
    title: ClassVar[str]
    outcome: ClassVar[Outcome]
    code: str

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: Sequence[SchemaViolation] = (),
        retry_after: int | None = None,
        fault: SchemaFault | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors
        self.fault = fault
        self.retry_after = retry_after
        if code is not None:
            self.code = code


class BadRequest(Refused):
    status, title, outcome, code = 400, "Bad Request", Outcome.INVALID, "invalid_body"


class Unauthorized(Refused):
    status, title, outcome, code = 401, "Unauthorized", Outcome.UNAUTHORIZED, "invalid_key"


class Forbidden(Refused):
    status, title, outcome, code = 403, "Forbidden", Outcome.FORBIDDEN, "no_access"


class NotFound(Refused):
    """Not the path of an operation. (It counts as no event; the outcome is there for `UnknownKey`.)"""

    status, title, outcome, code = 404, "Not Found", Outcome.UNKNOWN_KEY, "not_found"


class UnknownKey(NotFound):
    code = "unknown_key"


class MethodNotAllowed(Refused):
    status, title, outcome, code = 405, "Method Not Allowed", Outcome.INVALID, "method_not_allowed"


class TimedOut(Refused):
    """The request did not arrive in time. It is not read any further."""

    status, title, outcome, code = 408, "Request Timeout", Outcome.INVALID, "timeout"


class TooLarge(Refused):
    status, title, outcome, code = 413, "Content Too Large", Outcome.TOO_LARGE, "too_large"


class UnsupportedEncoding(Refused):
    status, title, outcome, code = 415, "Unsupported Media Type", Outcome.INVALID, "unsupported_encoding"


class Limited(Refused):
    """Raise with `retry_after`, in seconds."""

    status, title, outcome, code = 429, "Too Many Requests", Outcome.LIMITED, "limited"


class HeadersTooLarge(Refused):
    """The headers are too many or too large. The request is not read any further."""

    status, title, outcome, code = 431, "Request Header Fields Too Large", Outcome.INVALID, "headers_too_large"


class Failed(Refused):
    """An internal error. It tells the caller nothing of the inside; the log has the rest."""

    status, title, outcome, code = 500, "Internal Server Error", Outcome.FAILED, "internal_error"


class Unavailable(Refused):
    """The daemon cannot store durably, or too much is waiting. The caller should send it again."""

    status, title, outcome, code = 503, "Service Unavailable", Outcome.UNAVAILABLE, "unavailable"

    def __init__(self, detail: str, *, retry_after: int = 1) -> None:
        super().__init__(detail, retry_after=retry_after)


class Stale(Unavailable):
    """What a unit of work is to know of the state is remembered wrongly or not at all: another is to do it anew."""

    def __init__(self) -> None:
        super().__init__("What is stored has changed meanwhile. Send it again.")


def reason_of(error: BaseException) -> str:
    """Why something failed, as it is told and kept."""
    return storable(str(error) if isinstance(error, IngestdError) else f"{type(error).__name__}: {error}")


def storable(text: str) -> str:
    """Text of others, not too much of it and without what is no character: names of files may have that."""
    return text[:_MOST_TOLD].encode("utf-8", "replace").decode()
