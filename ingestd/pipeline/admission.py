"""Who sends this, have they sent too much, and may they: what is asked of a request before anything in it."""

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

    async def admit(self, request: Request, read: Callable[[], Awaitable[None]] | None = None) -> Principal:
        """Who sends it. Raises `Refused`: `Limited` before anything else, `Unavailable` and 401 before 403.

        `read` is called for who may send, before they are asked for too much: how much that is, a batch must be
        read for. What it refuses comes last.
        """
        await self._hooks.screen(request)
        principal, refused = None, None
        try:
            principal = await self._hooks.authenticate(request)
            self._check(request, principal)
            if read is not None:
                await read()
        except Unavailable:
            raise  # who sends cannot be told now, so it cannot be held against them
        except Refused as error:
            refused = error
        await self._hooks.admit(request, principal)  # whoever it is: over its rate it is told that first
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # or it would hold, by its traceback, this frame, and that it
        assert principal is not None
        return principal

    def _check(self, request: Request, principal: Principal | None) -> None:
        if principal is None:
            if request.bearer() is None:
                raise Unauthorized(
                    "No key was sent. Send it as the header Authorization: Bearer KEY.", code="missing_key"
                )
            if self._store.loss is not None:  # a 401 would be final, and the key may be one of those lost
                raise Unavailable("Keys cannot be looked up at the moment. Send it again.", retry_after=_LOSS_RETRY)
            raise Unauthorized("This key is not valid here.")
        if not request.endpoint.is_public:
            permissions = principal.grants.get("CRM")
            if permissions is None:
                raise Forbidden("This key has no access to the app CRM.", code="no_app_access")
            if "ADMIN" not in permissions:
                raise Forbidden("This key has no permission ADMIN in the app CRM.", code="no_permission")
