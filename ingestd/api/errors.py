"""The errors that ingestd raises on purpose.

::

    IngestdError
    ├── ConfigError          the start stops, exit 78
    ├── CommandError         a command cannot do its task, exit 1
    │   └── UpgradeNeeded        the data are of an earlier version, which only a daemon upgrades
    ├── WriteConflict        data that a transaction has read changed meanwhile
    ├── DuplicateMessage     a message with this idempotency key was stored before
    ├── LeaseLost            another daemon has the consumer's cursor now
    ├── SinkRetry            raised by a sink: the sink itself fails, whatever the records are
    ├── SinkReject           raised by a sink: it never takes these records of the batch
    ├── SinkFailure          a call of a sink failed, perhaps because of a record
    └── Refused              the problem that the caller gets as the answer
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
    "CommandError",
    "ConfigError",
    "DuplicateMessage",
    "Failed",
    "Forbidden",
    "HeadersTooLarge",
    "IngestdError",
    "LeaseLost",
    "Limited",
    "MethodNotAllowed",
    "NotFound",
    "Refused",
    "SchemaFault",
    "SchemaViolation",
    "SinkFailure",
    "SinkReject",
    "SinkRetry",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnknownKey",
    "UnsupportedEncoding",
    "UpgradeNeeded",
    "WriteConflict",
    "reason_of",
    "storable",
]


_MOST_TOLD = 500  # characters


class IngestdError(Exception):
    """Base of all errors that ingestd raises on purpose."""


class ConfigError(IngestdError):
    """The daemon cannot start with this configuration. The message names the option or file, and the cure."""


class CommandError(IngestdError):
    """A command cannot do its task."""


class UpgradeNeeded(CommandError):
    """The data are of an earlier version. A daemon upgrades them when it starts, and `ingestd store upgrade`."""


class WriteConflict(IngestdError):
    """Data that a transaction has read changed before its commit; nothing was written.

    A new transaction may succeed.
    """

    def __init__(self) -> None:
        super().__init__("the stored data has changed meanwhile")


class DuplicateMessage(IngestdError):
    """An earlier append has the idempotency key, with this value; nothing was appended."""

    def __init__(self, value: str) -> None:
        super().__init__("this has been stored already")
        self.value = value


class LeaseLost(IngestdError):
    """Another daemon holds the consumer's cursor now, or the journal lost its records; nothing was written."""


class SinkRetry(IngestdError):
    """The failure is known to be the sink's: it is full, read-only, over a quota, starting, or without a leader.

    The batch is written again, after `after` seconds if given, until the sink takes it. This never counts against a
    record. Any other exception may be the fault of a record and counts. So a sink that is not sure raises another
    exception.

    The first `written` records of the batch are durable. They do not come again, the others do.
    """

    def __init__(self, message: str, *, after: float | None = None, written: int = 0) -> None:
        super().__init__(message)
        self.after = after
        self.written = written


class SinkReject(IngestdError):
    """The sink will never take some records of the batch: `reasons` maps their indexes to the reasons.

    The other records of the batch are written again, whether the sink has them or not. An exception are those among the
    first `written` of the batch, which are durable. `written=len(batch)` says that the sink has all the others.
    """

    takes: ClassVar[str] = 'SinkReject takes {index: reason}, such as {0: "too long"}; 0 is the first of the batch'

    def __init__(self, reasons: Mapping[int, str], *, written: int = 0) -> None:
        if not isinstance(reasons, Mapping):
            raise TypeError(f"{self.takes}, not a value of the type {type(reasons).__name__}")
        super().__init__(f"{len(reasons)} records rejected")
        self.reasons = reasons
        self.written = written


class SinkFailure(IngestdError):
    """A call of a sink failed, perhaps because of a record.

    It counts against the records like any other exception. Delivery raises it for calls that take too long or break the
    contract. A sink may raise it for a log line without a traceback. The batch is written again, after `after` seconds
    if given, without its first `written` records, which are durable.
    """

    def __init__(self, message: str, *, after: float | None = None, written: int = 0) -> None:
        super().__init__(message)
        self.after = after
        self.written = written


class SchemaViolation(NamedTuple):
    """One fault of a request body: its location (a JSON pointer, RFC 6901) and a message."""

    pointer: str
    message: str


class SchemaFault(NamedTuple):
    """The place and kind of a schema violation. Metrics show both, so callers must not choose any part of them."""

    pointer: str
    """A JSON pointer of names in the schema."""
    reason: str
    """The keyword of JSON Schema, or a word for a rule without a keyword."""


class Refused(IngestdError):
    """The request is refused; `detail` tells the caller why.

    Metrics show `fault`, or `code` without one.
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

    @classmethod
    def of_member(cls, pointer: str, message: str, reason: str) -> BadRequest:
        """The refusal of one member of a body. Metrics show `pointer` and `reason`, so a caller must not choose them.

        An empty pointer is the whole body.
        """
        return cls(
            f"{pointer or 'the body'}: {message}",
            code="invalid_envelope",
            errors=[SchemaViolation(pointer, message)],
            fault=SchemaFault(pointer, reason),
        )


class Unauthorized(Refused):
    status, title, outcome, code = 401, "Unauthorized", Outcome.UNAUTHORIZED, "invalid_key"


class Forbidden(Refused):
    status, title, outcome, code = 403, "Forbidden", Outcome.FORBIDDEN, "no_access"


class NotFound(Refused):
    """No operation has this path. Such a request counts as no event; the outcome exists for `UnknownKey`."""

    status, title, outcome, code = 404, "Not Found", Outcome.UNKNOWN_KEY, "not_found"


class UnknownKey(NotFound):
    code = "unknown_key"


class MethodNotAllowed(Refused):
    status, title, outcome, code = 405, "Method Not Allowed", Outcome.INVALID, "method_not_allowed"


class TimedOut(Refused):
    """The request did not arrive in time. The daemon stops reading it."""

    status, title, outcome, code = 408, "Request Timeout", Outcome.INVALID, "timeout"


class TooLarge(Refused):
    status, title, outcome, code = 413, "Content Too Large", Outcome.TOO_LARGE, "too_large"


class UnsupportedEncoding(Refused):
    status, title, outcome, code = 415, "Unsupported Media Type", Outcome.INVALID, "unsupported_encoding"


class Limited(Refused):
    """Raise with `retry_after`, in seconds."""

    status, title, outcome, code = 429, "Too Many Requests", Outcome.LIMITED, "limited"


class HeadersTooLarge(Refused):
    """The headers are too many or too large. The daemon stops reading the request."""

    status, title, outcome, code = 431, "Request Header Fields Too Large", Outcome.INVALID, "headers_too_large"


class Failed(Refused):
    """An internal error. The answer contains no detail; the log has the details."""

    status, title, outcome, code = 500, "Internal Server Error", Outcome.FAILED, "internal_error"


class Unavailable(Refused):
    """The daemon cannot store durably, or too many events are waiting. The caller should send the request again.

    `detail` is for the caller, and `reason` for operators, if they need another text: `reason_of` returns it.
    """

    status, title, outcome, code = 503, "Service Unavailable", Outcome.UNAVAILABLE, "unavailable"

    def __init__(self, detail: str, *, retry_after: int = 1, reason: str | None = None) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """The reason of a failure, for messages and records."""
    if isinstance(error, Unavailable) and error.reason is not None:
        return storable(error.reason)
    return storable(str(error) if isinstance(error, IngestdError) else f"{type(error).__name__}: {error}")


def storable(text: str) -> str:
    """Foreign text, cut to a limit and without invalid characters, which file names may contain."""
    return text[:_MOST_TOLD].encode("utf-8", "replace").decode()
