"""The paths of the public listener: the daemon's own, and those of the intakes that plugins register."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

from tornado.httputil import HTTPInputError

from ingestd.api.errors import ConfigError
from ingestd.api.events import Endpoint
from ingestd.api.intake import Intake, Route

from .client_file import ClientFile

__all__ = ["BASE_PATH", "OWN_OPERATIONS", "Operation", "Routes", "path_of"]

BASE_PATH = "/api/v1/analytics"
CLIENT = Endpoint("client", is_public=True)
"""The browser client's file. Its requests are in the access log and in no metric of events."""

_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~-]+|\{[a-z]\w*\}))+", re.ASCII)
_LONGEST_PART = 512
"""Characters of a part of a path that stands for braces, before decoding. Anybody may send it."""
_PARAMETER = re.compile(r"\{(\w+)\}")
# A path must not have a backslash, because some servers read it as a slash.
_TARGET_PATH = r"[\x21\x22\x24-\x3e\x40-\x5b\x5d-\x7e]*+"
_HOST = r"(?:\[[0-9A-Fa-f:.]++\]|(?>(?:[A-Za-z0-9\-._~!$&'()*+,;=]++|%[0-9A-Fa-f]{2})+))(?::[0-9]{0,5})?"
_ORIGIN = re.compile(rf"(/(?!/){_TARGET_PATH})")
_ABSOLUTE = re.compile(rf"https?://{_HOST}((?:/{_TARGET_PATH})?)", re.IGNORECASE | re.ASCII)


class Operation:
    """An operation of the public listener. `intake` and `route` are None for the daemon's own."""

    __slots__ = (
        "allow", "answers_alone", "batch", "endpoint", "file", "intake", "methods", "parameters", "route",
        "takes_batches",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        batch: bool = False,
        intake: Intake | None = None,
        route: Route | None = None,
        parameters: Mapping[str, str] | None = None,
        file: ClientFile | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.batch = batch
        self.intake = intake
        self.route = route
        self.parameters = parameters or {}
        """The parts of the path that stand in braces in the route."""
        self.file = file
        """The file that the path answers with."""
        gets = file is not None or (route is not None and route.method == "GET")
        self.methods = ("GET", "HEAD") if gets else ("POST",)
        self.allow = ", ".join([*self.methods, "OPTIONS"])
        self.answers_alone = file is not None or (route is not None and route.answer is not None)
        """Whether the path takes no events."""
        self.takes_batches = batch or (route is not None and route.batch is not None)

    def answer(self) -> bytes:
        """The body of a path that takes no events."""
        assert self.route is not None
        assert self.route.answer is not None
        return self.route.answer(self.parameters)


OWN_OPERATIONS = {
    "/track": Operation(Endpoint.TRACK),
    "/customer-events": Operation(Endpoint.CUSTOMER_EVENTS),
    "/identify/public": Operation(Endpoint.IDENTIFY),
    "/identify": Operation(Endpoint.SERVER_IDENTIFY),
    "/batch": Operation(Endpoint.TRACK, batch=True),
    "/customer-events/batch": Operation(Endpoint.CUSTOMER_EVENTS, batch=True),
}
"""The daemon's own operations, by their paths below `BASE_PATH`."""


class Routes:
    """Finds the operation of a request target. Each path is the same with a trailing slash."""

    def __init__(self, intakes: Iterable[Intake] = (), *, client: ClientFile | None = None) -> None:
        """Raises `ConfigError` for a path that two intakes have, or that is none."""
        self._exact: dict[str, Operation] = {}
        self._patterns: list[tuple[re.Pattern[str], Operation]] = []
        self.table: dict[str, Operation] = {}
        """Every operation by its path, where braces stand for a part that callers choose."""
        for path, operation in OWN_OPERATIONS.items():
            self._add(BASE_PATH + path, operation)
        if client is not None:
            self._add(f"{BASE_PATH}/client.js", Operation(CLIENT, file=client))
        for intake in intakes:
            for route in intake.routes:
                self._add_route(route, Operation(intake.endpoint, intake=intake, route=route))

    def find(self, target: str) -> Operation | None:
        """Raises `HTTPInputError` for a malformed target."""
        return self._exact.get(target) or self._find_path(path_of(target))  # most targets are only a path

    def _find_path(self, path: str) -> Operation | None:
        operation = self._exact.get(path)
        if operation is not None:
            return operation
        for pattern, each in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                parameters = {name: unquote(text) for name, text in match.groupdict().items()}
                return Operation(each.endpoint, intake=each.intake, route=each.route, parameters=parameters)
        return None

    def _add_route(self, route: Route, operation: Operation) -> None:
        where = f"the path {route.path} of the intake {operation.endpoint.value}"
        if not _PATH.fullmatch(route.path) or route.path.startswith(BASE_PATH):
            raise ConfigError(f"{where}: expected /name/name without a slash at its end, and not below {BASE_PATH}")
        has_parameters = _PARAMETER.search(route.path) is not None
        if route.answer is None and (has_parameters or route.method == "GET"):
            raise ConfigError(f"{where}: a path with braces or GET takes no messages, so it needs an `answer`")
        if has_parameters:
            self.table[route.path] = operation
            self._patterns.append((re.compile("".join(_pattern(route.path)) + "/?"), operation))
        else:
            self._add(route.path, operation)

    def _add(self, path: str, operation: Operation) -> None:
        if path in self._exact:
            other = self._exact[path].endpoint.value
            raise ConfigError(f"the path {path} of the intake {operation.endpoint.value}: {other} has it, too")
        self.table[path] = self._exact[path] = self._exact[f"{path}/"] = operation


def _pattern(path: str) -> Iterator[str]:
    """The pieces of a regular expression for a path with braces. A part never has a slash."""
    for number, piece in enumerate(_PARAMETER.split(path)):
        yield f"(?P<{piece}>[^/]{{1,{_LONGEST_PART}}}+)" if number % 2 else re.escape(piece)


def path_of(target: str) -> str:
    """The path of a request target: `/path`, or a whole URL as clients send it to a proxy.

    RFC 9112, 3.2 calls these origin-form and absolute-form. Its other forms are for proxies (`CONNECT host:port`) and
    for a server as a whole (`OPTIONS *`). Some servers read a target such as `//host/path` as a path, others read a
    host and a path in it. Raises `HTTPInputError` for these, which both servers answer with 400.
    """
    path, _, query = target.partition("?")
    match = _ORIGIN.fullmatch(path) or _ABSOLUTE.fullmatch(path)
    # Browsers do not escape characters such as | and { in a query, so all visible ASCII except # passes.
    if match is None or not (query.isascii() and query.isprintable()) or " " in query or "#" in query:
        raise HTTPInputError("the request target is malformed")
    return match[1] or "/"
