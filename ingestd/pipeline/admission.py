"""The admission of a request: its sender, the sender's rate and permissions, before its events are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ingestd.api.errors import Forbidden, Refused, Unauthorized, Unavailable
from ingestd.api.events import Principal, Request
from ingestd.api.store import Store
from ingestd.hooks.caller import Hooks

__all__ = ["Admission"]

_LOSS_RETRY = 10  # seconds: an operator is needed


class Admission:
    def __init__(self, hooks: Hooks, store: Store) -> None:
        self._hooks = hooks
        self._store = store

    async def admit(
        self,
        request: Request,
        read: Callable[[Principal], Awaitable[None]] | None = None,
        *,
        identify: Callable[[], Awaitable[None]] | None = None,
    ) -> Principal:
        """Return the sender of a request. Raises `Refused`.

        The order of refusals is: by a `screen` hook, `Unavailable`, by an `admit` hook, 401, 403, by `read`. `read` is
        called for a sender with permission before the `admit` hooks, because a rate counts the events of a batch.
        `identify` finds the credential of a request of an intake.
        """
        await self._hooks.screen(request)
        principal, refused = None, None
        try:
            if identify is not None:
                await identify()
            principal = await self._hooks.authenticate(request)
            self._check(request, principal)
            if read is not None and principal is not None:
                await read(principal)
        except Unavailable:
            raise  # the sender is not known now, so this counts against none
        except Refused as error:
            refused = error
        await self._hooks.admit(request, principal)  # a sender over its rate gets that refusal first, whoever it is
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # breaks the cycle of error, traceback and frame
        assert principal is not None
        return principal

    def _check(self, request: Request, principal: Principal | None) -> None:
        if principal is None:
            if request.bearer() is None:
                cure = (
                    "sent. Send it as the header Authorization: Bearer KEY."
                    if request.intake is None
                    else "found. A body can have it in a batch of up to 512 KiB, or in a message of up to 32 KiB."
                )
                raise Unauthorized(f"No key was {cure}", code="missing_key")
            if self._store.loss is not None:  # a 401 would be final, and the store may have lost this key
                raise Unavailable("Keys cannot be looked up now. Send the request again.", retry_after=_LOSS_RETRY)
            raise Unauthorized("This key is not valid here.")
        if not request.endpoint.is_public:
            permissions = principal.grants.get("CRM")
            if permissions is None:
                raise Forbidden("This key has no access to the app CRM.", code="no_app_access")
            if "ADMIN" not in permissions:
                raise Forbidden("This key has no permission ADMIN in the app CRM.", code="no_permission")
